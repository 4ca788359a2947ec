// Kernels' inner loops are compiled once for each instruction set and chosen when they run.
#pragma once

namespace rootstock::kernels {

enum class Isa { kGeneric, kAvx2, kAvx512 };

// The best that this CPU and this build have.
Isa HostIsa();

}  // namespace rootstock::kernels

// In namespace rootstock::kernels: declares the variants of a function.
#if defined(__x86_64__)
#define ROOTSTOCK_VARIANTS(...) \
  namespace generic {           \
  __VA_ARGS__;                  \
  }                             \
  namespace avx2 {              \
  __VA_ARGS__;                  \
  }                             \
  namespace avx512 {            \
  __VA_ARGS__;                  \
  }
#define ROOTSTOCK_PICK(name)                                             \
  (::rootstock::kernels::HostIsa() == ::rootstock::kernels::Isa::kAvx512 \
       ? &::rootstock::kernels::avx512::name                             \
   : ::rootstock::kernels::HostIsa() == ::rootstock::kernels::Isa::kAvx2 \
       ? &::rootstock::kernels::avx2::name                               \
       : &::rootstock::kernels::generic::name)
#else
#define ROOTSTOCK_VARIANTS(...) \
  namespace generic {           \
  __VA_ARGS__;                  \
  }
#define ROOTSTOCK_PICK(name) (&::rootstock::kernels::generic::name)
#endif
