// Breaks that are one kind each, at every place where they may be.
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/lora/hostile_artefacts.h"

namespace rootstock {
namespace {

enum Place { kFirst, kMiddle, kLast };
constexpr std::pair<Place, const char*> kPlaces[] = {
    {kFirst, "First"}, {kMiddle, "Middle"}, {kLast, "Last"}};

TestTensor& At(Artefact& a, Place place) {
  const auto steps = place == kFirst    ? 0
                     : place == kMiddle ? a.tensors.size() / 2
                                        : a.tensors.size() - 1;
  return std::next(a.tensors.begin(), static_cast<std::ptrdiff_t>(steps))->second;
}

// The header with what stands at `from` behind the tensor's name replaced.
void InHeader(Artefact& a, Place place, const std::string& from, const std::string& to) {
  const auto steps = place == kFirst ? 0 : place == kMiddle ? 6 : 11;
  const std::string& name = std::next(a.tensors.begin(), steps)->first;
  std::string file = a.File();
  const size_t json = file.find('{');
  const size_t begin = file.find(from, file.find("\"" + name + "\""));
  ASSERT_NE(begin, std::string::npos);
  file.replace(begin, from.size(), to);
  const size_t grown = to.size() - from.size();
  const uint64_t length =
      static_cast<uint8_t>(file[0]) + 256u * static_cast<uint8_t>(file[1]) + grown;
  a.Raw(WithLength(file.substr(json, length), file.substr(json + length)));
}

void AddDtypes(std::vector<Hostile>& out) {
  for (const char* dtype : {"BOOL", "U8", "I8", "I16", "I32", "I64", "F64", "F8_E4M3", "C64"}) {
    for (const auto& [place, word] : kPlaces) {
      out.push_back({absl::StrCat("Dtype", dtype, word), Reason::kDtype,
                     [dtype, place](Artefact& a) { At(a, place).dtype = dtype; }});
    }
  }
}

void AddNonfinite(std::vector<Hostile>& out) {
  struct Bits {
    const char *dtype, *name;
    std::string bytes;
  };
  const Bits all[] = {{"F32", "NaN", std::string("\0\0\xc0\x7f", 4)},
                      {"F32", "Signalling", {"\1\0\x80\x7f", 4}},
                      {"F32", "Inf", {"\0\0\x80\x7f", 4}},
                      {"F32", "MinusInf", {"\0\0\x80\xff", 4}},
                      {"BF16", "NaN", {"\xc0\x7f", 2}},
                      {"BF16", "Inf", {"\x80\x7f", 2}},
                      {"BF16", "MinusInf", {"\x80\xff", 2}},
                      {"F16", "NaN", {"\0\x7e", 2}},
                      {"F16", "Inf", {"\0\x7c", 2}},
                      {"F16", "MinusInf", {"\0\xfc", 2}}};
  for (const Bits& bits : all) {
    for (const auto& [place, word] : kPlaces) {
      for (const bool end : {false, true}) {
        out.push_back({absl::StrCat(bits.dtype, bits.name, word, end ? "AtEnd" : "AtBegin"),
                       Reason::kNonfinite, [bits, place, end](Artefact& a) {
                         TestTensor& t = At(a, place);
                         t.dtype = bits.dtype;
                         t.bytes.assign(t.bytes.size() * bits.bytes.size() / 4, '\0');
                         t.bytes.replace(end ? t.bytes.size() - bits.bytes.size() : 0,
                                         bits.bytes.size(), bits.bytes);
                       }});
      }
    }
  }
}

void AddCuts(std::vector<Hostile>& out) {
  for (const int part : {1, 5, 10, 20, 35, 50, 65, 80, 95, 99}) {
    out.push_back({absl::StrCat("CutAt", part, "Percent"), Reason::kTruncated, [part](Artefact& a) {
                     const std::string file = a.File();
                     a.Raw(file.substr(0, file.size() * static_cast<size_t>(part) / 100));
                   }});
  }
}

void AddShapes(std::vector<Hostile>& out) {
  const std::pair<const char*, void (*)(TestTensor&)> kBreaks[] = {
      {"Transposed", [](TestTensor& t) { std::swap(t.shape[0], t.shape[1]); }},
      {"OneRowLess", [](TestTensor& t) { t = Numbers(t.shape[0] - 1, t.shape[1]); }},
      {"OneColumnMore", [](TestTensor& t) { t = Numbers(t.shape[0], t.shape[1] + 1); }},
      {"Flat", [](TestTensor& t) { t.shape = {t.shape[0] * t.shape[1]}; }},
      {"Deep", [](TestTensor& t) { t.shape.insert(t.shape.begin(), 1); }},
      {"NoRows", [](TestTensor& t) { t = {"F32", {0, t.shape[1]}, ""}; }}};
  for (const auto& [name, change] : kBreaks) {
    for (const auto& [place, word] : kPlaces) {
      out.push_back({absl::StrCat("Shape", name, word), Reason::kShapeMismatch,
                     [change = change, place](Artefact& a) { change(At(a, place)); }});
    }
  }
}

void AddHeaderFields(std::vector<Hostile>& out) {
  struct Change {
    const char *name, *from, *to;
    Reason reason = Reason::kHeaderInvalid;
  };
  const Change kChanges[] = {
      {"DtypeKeyLost", "\"dtype\":\"F32\",", ""},
      {"DtypeNull", "\"F32\"", "null"},
      {"DtypeNumber", "\"F32\"", "32"},
      {"DtypeTwice", "\"dtype\":", "\"dtype\":\"F32\",\"dtype\":", Reason::kDuplicate},
      {"ShapeText", "\"shape\":[", "\"shape\":[\"8\","},
      {"ShapeFloat", "\"shape\":[", "\"shape\":[1.5,"},
      {"ShapeHuge", "\"shape\":[", "\"shape\":[99999999999999999999,"},
      {"ShapeNull", "\"shape\":[", "\"shape\":null,\"x\":["},
      {"OffsetNegative", "\"data_offsets\":[", "\"data_offsets\":[-"},
      {"OffsetThree", "\"data_offsets\":[", "\"data_offsets\":[0,"},
      {"OffsetText", "\"data_offsets\":[", "\"data_offsets\":[\"\","}};
  for (const Change& change : kChanges) {
    for (const auto& [place, word] : kPlaces) {
      out.push_back({absl::StrCat("Field", change.name, word), change.reason,
                     [change, place](Artefact& a) { InHeader(a, place, change.from, change.to); }});
    }
  }
}

void AddHalves(std::vector<Hostile>& out) {
  for (int i = 0; i < 12; ++i) {
    out.push_back({absl::StrCat("HalfOfPairLost", i), Reason::kUnpairedTensor,
                   [i](Artefact& a) { a.tensors.erase(std::next(a.tensors.begin(), i)); }});
  }
}

void AddLayers(std::vector<Hostile>& out) {
  for (const int layer : {3, 4, 1 << 20}) {
    for (const Module m : kAllModules) {
      out.push_back({absl::StrCat("Layer", layer, ModuleName(m)), Reason::kUnattachedTensor,
                     [layer, m](Artefact& a) { AddModule(a.tensors, a.model, layer, m, 8); }});
    }
  }
}

void AddConfigTypes(std::vector<Hostile>& out) {
  constexpr const char* kWrong[] = {R"("r": "8")",
                                    R"("r": 8.5)",
                                    R"("r": null)",
                                    R"("r": [8])",
                                    R"("r": true)",
                                    R"("r": 9223372036854775808)",
                                    R"("lora_alpha": "16")",
                                    R"("lora_alpha": [16])",
                                    R"("lora_alpha": true)",
                                    R"("target_modules": 5)",
                                    R"("target_modules": {"q_proj": 1})",
                                    R"("target_modules": [1])",
                                    R"("target_modules": [["q_proj"]])",
                                    R"("rank_pattern": [8])",
                                    R"("rank_pattern": {"q_proj": "8"})",
                                    R"("rank_pattern": {"q_proj": -1})",
                                    R"("alpha_pattern": {"q_proj": "8"})",
                                    R"("alpha_pattern": "q_proj")",
                                    R"("use_rslora": "yes")",
                                    R"("layers_to_transform": "0")"};
  int number = 0;
  for (const char* field : kWrong) {
    out.push_back({absl::StrCat("ConfigType", number++), Reason::kConfigInvalid,
                   [field](Artefact& a) { a.config = TestConfig(field); }});
  }
}

void AddPickles(std::vector<Hostile>& out) {
  int number = 0;
  for (const char* name : {"adapter_model.pt", "adapter_model.pth", "adapter_model.ckpt",
                           "adapter_model.pkl", "adapter_model.pickle", "pytorch_model.bin"}) {
    out.push_back({absl::StrCat("PickleNamed", number++), Reason::kPickle, [name](Artefact& a) {
                     a.dir.Write(kConfig, a.config);
                     a.dir.Write(name, a.File());
                     a.write = false;
                   }});
  }
}

}  // namespace

std::vector<Hostile> HostileVariants() {
  std::vector<Hostile> out;
  for (void (*add)(std::vector<Hostile>&) :
       {AddDtypes, AddNonfinite, AddCuts, AddShapes, AddHeaderFields, AddHalves, AddLayers,
        AddConfigTypes, AddPickles}) {
    add(out);
  }
  return out;
}

}  // namespace rootstock
