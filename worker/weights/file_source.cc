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
#include "worker/weights/mapped_rows.h"
#include "worker/weights/weight_source.h"

namespace rootstock {
namespace {

constexpr size_t kFingerprintBytes = 4096;  // at each end of a tensor
constexpr size_t kBlockBytes = 4 << 20;     // on its way from the disk while another is converted

std::span<const uint8_t> FirstBytes(const TensorView& view) {
  return view.bytes.first(std::min(kFingerprintBytes, view.bytes.size()));
}
std::span<const uint8_t> LastBytes(const TensorView& view) {
  return view.bytes.last(std::min(kFingerprintBytes, view.bytes.size()));
}

// The rows as `to`, dense; bytes written.
size_t ConvertRows(const MappedRows& part, DType from, char* out, DType to) {
  const size_t n = part.width / DTypeBytes(from), row_bytes = n * DTypeBytes(to);
  if (part.width == part.stride) {
    ConvertElements(part.data, from, part.rows * n, out, to);
  } else {
    for (size_t row = 0; row < part.rows; ++row) {
      ConvertElements(part.data + row * part.stride, from, n, out + row * row_bytes, to);
    }
  }
  return part.rows * row_bytes;
}

// *Not thread-safe.*
class FileSource : public WeightSource {
 public:
  FileSource(ShardedSafetensors files, FileUse use, std::string config)
      : files_(std::move(files)), use_(use), config_(std::move(config)) {}

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

  void Prefetch(const TensorShape& tensor, Range rows, Range cols) override {
    FetchRows(PartOf(*files_.Find(tensor.name), tensor, rows, cols));
  }

  void Read(const TensorShape& tensor, Range rows, Range cols, DType to, void* out) override {
    const TensorView* view = files_.Find(tensor.name);
    MappedRows left = PartOf(*view, tensor, rows, cols);
    const size_t rows_at_once = std::max<size_t>(1, kBlockBytes / std::max<size_t>(1, left.width));
    const auto take = [&] {
      MappedRows block = left;
      block.rows = std::min(rows_at_once, left.rows);
      left.data += block.rows * left.stride;
      left.rows -= block.rows;
      FetchRows(block);
      return block;
    };
    char* at = static_cast<char*>(out);
    for (MappedRows block = take(); block.rows > 0;) {
      const MappedRows next = take();
      at += ConvertRows(block, view->dtype, at, to);
      block = next;
    }
  }

  absl::StatusOr<Digest> Fingerprint() const override {
    Sha256 hash;
    hash.Update(absl::StrCat(config_.size(), "\n", config_));
    for (const auto& [name, view] : files_.tensors()) {
      for (const auto end : {FirstBytes(*view), LastBytes(*view)}) {
        FetchRows({end.data(), 1, end.size(), end.size()});
      }
    }
    for (const auto& [name, view] : files_.tensors()) {
      hash.Update(absl::StrCat(name, " ", DTypeName(view->dtype), " [",
                               absl::StrJoin(view->shape, ","), "]\n"));
      hash.Update(FirstBytes(*view));
      hash.Update(LastBytes(*view));
    }
    return hash.Finish();
  }

 private:
  static MappedRows PartOf(const TensorView& view, const TensorShape& tensor, Range rows,
                           Range cols) {
    const size_t bytes = DTypeBytes(view.dtype);
    return {view.bytes.data() + (size_t{1} * rows.begin * tensor.cols + cols.begin) * bytes,
            size_t{1} * rows.size(), cols.size() * bytes, tensor.cols * bytes};
  }

  void FetchRows(const MappedRows& part) const {
    if (use_ == FileUse::kParts) Fetch(part);
  }

  ShardedSafetensors files_;
  const FileUse use_;
  std::string config_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> OpenWeightFiles(
    const std::filesystem::path& model_dir, FileUse use) {
  std::ifstream config(model_dir / "config.json", std::ios::binary);
  if (!config) {
    return MakeError(absl::StatusCode::kNotFound, Reason::kModelInvalid, "model",
                     model_dir.string(), "holds no config.json");
  }
  std::string text((std::istreambuf_iterator<char>(config)), std::istreambuf_iterator<char>());
  ASSIGN_OR_RETURN(ShardedSafetensors files, ShardedSafetensors::Open(model_dir, use));
  return std::make_unique<FileSource>(std::move(files), use, std::move(text));
}

}  // namespace rootstock
