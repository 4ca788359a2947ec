# FlashInfer's headers, with the CCCL and CUTLASS that it brings: fetched by
# deploy/fetch_flashinfer.sh into the cache.
# rootstock_use_flashinfer(TARGET)
set(cache $ENV{ROOTSTOCK_CACHE})
if(NOT cache)
  set(cache $ENV{HOME}/.cache/rootstock)
endif()
set(ROOTSTOCK_FLASHINFER ${cache}/flashinfer-0.7.4 CACHE PATH "FlashInfer's headers")
if(NOT EXISTS ${ROOTSTOCK_FLASHINFER}/include/flashinfer/page.cuh)
  message(FATAL_ERROR "FlashInfer's headers are not in ${ROOTSTOCK_FLASHINFER}: run "
                      "deploy/fetch_flashinfer.sh (deploy/install.sh does), or configure with "
                      "-DROOTSTOCK_CUDA=OFF")
endif()

function(rootstock_use_flashinfer TARGET)
  # Its CCCL goes before the toolkit's, which may be too old.
  target_include_directories(${TARGET} BEFORE PRIVATE
                             ${ROOTSTOCK_FLASHINFER}/cccl/libcudacxx/include
                             ${ROOTSTOCK_FLASHINFER}/cccl/cub ${ROOTSTOCK_FLASHINFER}/cccl/thrust)
  target_include_directories(${TARGET} SYSTEM PRIVATE ${ROOTSTOCK_FLASHINFER}/include
                             ${ROOTSTOCK_FLASHINFER}/cutlass/include)
  target_compile_options(
    ${TARGET} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -DNDEBUG -w>)
endfunction()
