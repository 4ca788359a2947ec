#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/safetensors/safetensors.h"
#include "worker/weights/convert.h"
#include "worker/weights/weight_source.h"

namespace rootstock {
namespace {

constexpr size_t kFingerprintBytes = 4096;  // at each end of a tensor

// *Not thread-safe.*
class FileSource : public WeightSource {
 public:
  FileSource(ShardedSafetensors files, std::string config)
      : files_(std::move(files)), config_(std::move(config)) {}

  absl::Status Check(const TensorShape& tensor) const override {
    const TensorView* view = files_.Find(tensor.name);
    if (view == nullptr) {
      return InvalidField(Reason::kModelInvalid, "tensor", tensor.name, "is missing");
    }
    std::vector<int64_t> want;
    if (!tensor.is_vector) want.push_back(tensor.rows);
    want.push_back(tensor.cols);
    if (view->shape != want) {
      return InvalidField(
          Reason::kModelInvalid, "tensor", tensor.name,
          absl::StrCat("has shape [", absl::StrJoin(view->shape, ", "), "], config.json asks for [",
                       absl::StrJoin(want, ", "), "]"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckNothingLeft(const std::vector<TensorShape>& used) const override {
    std::set<std::string> names;
    for (const TensorShape& tensor : used) names.insert(tensor.name);
    for (const auto& [name, view] : files_.tensors()) {
      // Tied models may repeat the head; old files hold the rope's frequencies.
      const bool harmless = name == "lm_head.weight" || absl::EndsWith(name, ".inv_freq");
      if (!names.contains(name) && !harmless) {
        return InvalidField(Reason::kModelInvalid, "tensor", name,
                            "belongs to nothing that config.json describes");
      }
    }
    return absl::OkStatus();
  }

  size_t ElementBytes(const TensorShape& tensor) const override {
    return DTypeBytes(files_.Find(tensor.name)->dtype);
  }

  void Read(const TensorShape& tensor, Range rows, Range cols, DType to, void* out) override {
    const TensorView* view = files_.Find(tensor.name);
    const size_t bytes = DTypeBytes(view->dtype);
    const uint8_t* in = view->bytes.data();
    const size_t width = cols.size();
    if (cols.size() == tensor.cols) {
      ConvertElements(in + rows.begin * width * bytes, view->dtype, rows.size() * width, out, to);
      return;
    }
    char* at = static_cast<char*>(out);
    for (int r = rows.begin; r < rows.end; ++r) {
      const size_t first = static_cast<size_t>(r) * tensor.cols + cols.begin;
      ConvertElements(in + first * bytes, view->dtype, width, at, to);
      at += width * DTypeBytes(to);
    }
  }

  absl::StatusOr<Digest> Fingerprint() const override {
    Sha256 hash;
    hash.Update(absl::StrCat(config_.size(), "\n", config_));
    for (const auto& [name, view] : files_.tensors()) {
      hash.Update(absl::StrCat(name, " ", DTypeName(view->dtype), " [",
                               absl::StrJoin(view->shape, ","), "]\n"));
      const size_t end = std::min(kFingerprintBytes, view->bytes.size());
      hash.Update(view->bytes.first(end));
      hash.Update(view->bytes.last(end));
    }
    return hash.Finish();
  }

 private:
  ShardedSafetensors files_;
  std::string config_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> OpenWeightFiles(
    const std::filesystem::path& model_dir) {
  std::ifstream config(model_dir / "config.json", std::ios::binary);
  if (!config) {
    return MakeError(absl::StatusCode::kNotFound, Reason::kModelInvalid, "model",
                     model_dir.string(), "holds no config.json");
  }
  std::string text((std::istreambuf_iterator<char>(config)), std::istreambuf_iterator<char>());
  ASSIGN_OR_RETURN(ShardedSafetensors files, ShardedSafetensors::Open(model_dir));
  return std::make_unique<FileSource>(std::move(files), std::move(text));
}

}  // namespace rootstock
