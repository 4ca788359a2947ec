#include "tests/parity/golden_file.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

namespace rootstock {
namespace {

namespace fs = std::filesystem;

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Goldens hold int32, which model files never do: their reader refuses it.
class TensorFile {
 public:
  explicit TensorFile(const fs::path& path) : bytes_(ReadFile(path)) {
    uint64_t size = 0;
    std::memcpy(&size, bytes_.data(), sizeof(size));
    header_ = nlohmann::json::parse(bytes_.substr(sizeof(size), size));
    data_ = sizeof(size) + size;
  }
  bool Has(const std::string& name) const { return header_.contains(name); }
  template <typename T>
  std::vector<T> Read(const std::string& name) const {
    const nlohmann::json& tensor = header_.at(name);
    const size_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
    std::vector<T> out((end - begin) / sizeof(T));
    std::memcpy(out.data(), bytes_.data() + data_ + begin, end - begin);
    return out;
  }
  template <typename T>
  std::vector<std::vector<T>> ReadRows(const std::string& name) const {
    const size_t columns = header_.at(name)["shape"][1];
    const std::vector<T> flat = Read<T>(name);
    std::vector<std::vector<T>> rows;
    for (size_t i = 0; i < flat.size(); i += columns) {
      rows.emplace_back(flat.begin() + i, flat.begin() + i + columns);
    }
    return rows;
  }

 private:
  std::string bytes_;
  nlohmann::json header_;
  size_t data_ = 0;
};

Golden ReadGolden(const fs::path& json_path) {
  const nlohmann::json json = nlohmann::json::parse(ReadFile(json_path));
  Golden golden;
  golden.name = json_path.stem();
  golden.model = json["model"].get<std::string>();
  if (!json["adapter"].is_null()) golden.adapter = json["adapter"]["path"].get<std::string>();
  const TensorFile file(fs::path(json_path).replace_extension(".safetensors"));
  for (int i = 0; file.Has(std::to_string(i) + ".prompt"); ++i) {
    const std::string prefix = std::to_string(i) + ".";
    golden.prompts.push_back(
        {file.Read<int32_t>(prefix + "prompt"), file.Read<int32_t>(prefix + "tokens"),
         file.Read<float>(prefix + "logits"), file.ReadRows<int32_t>(prefix + "top_ids"),
         file.ReadRows<float>(prefix + "top_logits")});
  }
  return golden;
}

std::string ModelOf(const fs::path& path) {
  const std::string stem = path.stem();
  const size_t cut = stem.find("--");
  return path.extension() == ".json" && cut != std::string::npos ? stem.substr(0, cut) : "";
}

}  // namespace

std::vector<Golden> ReadGoldens(const fs::path& dir, const std::string& model) {
  std::vector<Golden> out;
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (ModelOf(entry.path()) == model) out.push_back(ReadGolden(entry.path()));
  }
  std::sort(out.begin(), out.end(),
            [](const Golden& a, const Golden& b) { return a.name < b.name; });
  return out;
}

std::vector<std::string> GoldenModels(const fs::path& dir) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir)) names.insert(ModelOf(entry.path()));
  names.erase("");
  return {names.begin(), names.end()};
}

}  // namespace rootstock
