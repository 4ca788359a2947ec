// libsentencepiece carries, and exports, a Protocol Buffers runtime of its own. In one symbol space
// with the one that gRPC uses, each calls into the other and crashes. So the library sits behind a
// module that is opened with its own symbols first.
#include "coordinator/tokenizer/sentencepiece_model.h"

#include <dlfcn.h>

#include <filesystem>

namespace rootstock {
namespace {

constexpr char kModule[] = "librootstock_sentencepiece.so";

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kOpenFlags = RTLD_NOW | RTLD_LOCAL;  // the sanitizer can't follow RTLD_DEEPBIND
#else
constexpr int kOpenFlags = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

// Beside the programs, or where an installation keeps libraries.
void* OpenModule() {
  std::error_code ignored;
  const std::filesystem::path here =
      std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const auto& folder : {here, here / "../bin", here / "../lib"}) {
    if (void* module = dlopen((folder / kModule).c_str(), kOpenFlags)) return module;
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<SentencePieceModel> SentencePieceModel::Load(const std::string& file,
                                                             std::string& error) {
  using LoadFunction = SentencePieceModel* (*)(const std::string&, std::string&);
  void* module = OpenModule();  // stays open: models run its code
  if (module == nullptr) {
    error = std::string(kModule) + " is not there, or can't be opened";
    return nullptr;
  }
  const auto load = reinterpret_cast<LoadFunction>(dlsym(module, "rootstock_load_sentencepiece"));
  return std::unique_ptr<SentencePieceModel>(load(file, error));
}

}  // namespace rootstock
