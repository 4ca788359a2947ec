#include "common/lora/hostile_artefacts.h"

namespace rootstock {
namespace {

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// "base_model.model.model.layers.0.self_attn.q_proj"
const std::string kQ0 = PeftPath(0, Module::kQ);

}  // namespace

std::vector<Hostile> HostileHeaders() {
  return {
      {"FileEmpty", Reason::kTruncated, [](auto& a) { a.Raw(""); }},
      {"FileOfSevenBytes", Reason::kTruncated, [](auto& a) { a.Raw(std::string(7, '\0')); }},
      {"HeaderLengthZero", Reason::kHeaderInvalid, [](auto& a) { a.Raw(std::string(8, '\0')); }},
      {"HeaderLengthAllOnes", Reason::kHeaderTooLarge,
       [](auto& a) { a.Raw(std::string(8, '\xff') + "{}"); }},
      {"HeaderLengthOverCap", Reason::kHeaderTooLarge,
       [](auto& a) { a.Raw(std::string("\1\0\x40\0\0\0\0\0{}", 10)); }},
      {"HeaderLengthOverFile", Reason::kTruncated,
       [](auto& a) { a.Raw(std::string("\0\0\x01\0\0\0\0\0{}", 10)); }},
      {"HeaderOfFourMegabytesOfNothing", Reason::kHeaderInvalid,
       [](auto& a) { a.Raw(WithLength(std::string(4 << 20, ' '), "")); }},
      {"HeaderDeep", Reason::kHeaderInvalid,
       [](auto& a) { a.Raw(WithLength("{\"a\":" + std::string(4000000, '['), "")); }},
      {"HeaderLongString", Reason::kHeaderInvalid,
       [](auto& a) { a.Raw(WithLength("{\"" + std::string(4000000, 'a') + "\":1}", "")); }},
      {"HeaderManyTensors", Reason::kHeaderInvalid,
       [](auto& a) {
         std::string json = "{";
         for (int i = 0; i < 70000; ++i) {
           json += "\"" + std::to_string(i) +
                   "\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},";
         }
         json.back() = '}';
         a.Raw(WithLength(json, ""));
       }},
      {"HeaderNotJson", Reason::kHeaderInvalid, [](auto& a) { a.Raw(WithLength("{]", "")); }},
      {"HeaderList", Reason::kHeaderInvalid, [](auto& a) { a.Raw(WithLength("[]", "")); }},
      {"HeaderLeadingSpace", Reason::kHeaderInvalid, [](auto& a) { a.Raw(WithLength(" {}", "")); }},
      {"HeaderTrailing", Reason::kHeaderInvalid, [](auto& a) { a.Raw(WithLength("{}{}", "")); }},
      {"HeaderExtraKey", Reason::kHeaderInvalid,
       [](auto& a) { a.Raw(Replaced(a.File(), "\"dtype\"", "\"dtypo\"")); }},
      {"HeaderMetadataNumber", Reason::kHeaderInvalid,
       [](auto& a) { a.Raw(WithLength("{\"__metadata__\":{\"a\":1}}", "")); }},
      {"ShapeNegative", Reason::kHeaderInvalid, [](auto& a) { a.First().shape = {-8, -64}; }},
      {"ShapeOverflow", Reason::kHeaderInvalid,
       [](auto& a) { a.First().shape = {int64_t{1} << 62, 8}; }},
      {"ShapeOverflowToZero", Reason::kHeaderInvalid,
       [](auto& a) { a.First() = {"F32", {int64_t{1} << 32, int64_t{1} << 32}, ""}; }},
      {"ShapeLies", Reason::kHeaderInvalid, [](auto& a) { a.First().shape = {8, 63}; }},
      {"ShapeDeep", Reason::kHeaderInvalid,
       [](auto& a) { a.First().shape.insert(a.First().shape.begin(), 16, 1); }},
      {"OffsetsBackwards", Reason::kHeaderInvalid,
       [](auto& a) {
         a.Raw(Replaced(a.File(), "\"data_offsets\":[0,2048]", "\"data_offsets\":[2048,0]"));
       }},
      {"OffsetsOverlap", Reason::kOverlapOrHole,
       [](auto& a) {
         a.Raw(Replaced(a.File(), "\"data_offsets\":[2048,4096]", "\"data_offsets\":[2044,4092]"));
       }},
      {"OffsetsSame", Reason::kOverlapOrHole,
       [](auto& a) {
         a.Raw(Replaced(a.File(), "\"data_offsets\":[2048,4096]", "\"data_offsets\":   [0,2048]"));
       }},
      {"OffsetsEndEarly", Reason::kOverlapOrHole, [](auto& a) { a.Raw(a.File() + "payload"); }},
      {"OffsetsHuge", Reason::kHeaderInvalid,
       [](auto& a) {
         a.Raw(Replaced(a.File(), "\"data_offsets\":[0,2048]",
                        "\"data_offsets\":[0,18446744073709551615]"));
       }},
      {"DataCut", Reason::kTruncated,
       [](auto& a) { a.Raw(a.File().substr(0, a.File().size() - 1)); }},
      {"DataMissing", Reason::kTruncated,
       [](auto& a) {
         const std::string file = a.File();
         a.Raw(file.substr(0, file.rfind("]}}") + 3));
       }},
  };
}

std::vector<Hostile> HostileTensors() {
  return {
      {"DtypeInt8", Reason::kDtype, [](auto& a) { a.First().dtype = "I8"; }},
      {"DtypeF64", Reason::kDtype, [](auto& a) { a.First().dtype = "F64"; }},
      {"DtypeF8", Reason::kDtype, [](auto& a) { a.First().dtype = "F8_E5M2"; }},
      {"DtypeMadeUp", Reason::kDtype, [](auto& a) { a.First().dtype = "F33"; }},
      {"TensorTwice", Reason::kDuplicate,
       [](auto& a) {
         a.Raw(Replaced(a.File(), "layers.1.self_attn.q_proj.lora_A",
                        "layers.0.self_attn.q_proj.lora_A"));
       }},
      {"TensorTwiceByPrefix", Reason::kDuplicate,
       [](auto& a) { a.tensors["model.layers.0.self_attn.q_proj.lora_A.weight"] = a.First(); }},
      {"TensorTwiceByWrapper", Reason::kDuplicate,
       [](auto& a) { a.tensors["_orig_mod." + kQ0 + ".lora_A.weight"] = a.First(); }},
      {"TensorTwiceFused", Reason::kDuplicate,
       [](auto& a) { a.tensors["model.layers.0.self_attn.qkv_proj.lora_A.weight"] = a.First(); }},
      {"TwoAdapters", Reason::kUnattachedTensor,
       [](auto& a) {
         a.tensors["model.layers.0.self_attn.k_proj.lora_A.other.weight"] = Numbers(8, 64);
       }},
      {"LayerOutOfRange", Reason::kUnattachedTensor,
       [](auto& a) { AddModule(a.tensors, a.model, 3, Module::kQ, 8); }},
      {"LayerHuge", Reason::kUnattachedTensor,
       [](auto& a) {
         a.tensors["model.layers.99999999999999999999.self_attn.q_proj.lora_A.weight"] =
             Numbers(8, 64);
       }},
      {"LayerOtherDigits", Reason::kUnattachedTensor,
       [](auto& a) {
         a.tensors["model.layers.0x1.self_attn.q_proj.lora_A.weight"] = Numbers(8, 64);
       }},
      {"StrayTensor", Reason::kUnattachedTensor,
       [](auto& a) { a.tensors["adapter_gate"] = Numbers(1, 1); }},
      {"PathLikeName", Reason::kUnattachedTensor,
       [](auto& a) { a.tensors["../../../etc/passwd"] = Numbers(1, 1); }},
      {"HalfAPair", Reason::kUnpairedTensor,
       [](auto& a) { a.tensors.erase(kQ0 + ".lora_A.weight"); }},
      {"DoraMagnitude", Reason::kDora,
       [](auto& a) { a.tensors[kQ0 + ".lora_magnitude_vector"] = Numbers(64, 1); }},
      {"BiasTensor", Reason::kBias,
       [](auto& a) { a.tensors[kQ0 + ".lora_B.bias"] = Numbers(64, 1); }},
      {"SavedModule", Reason::kModulesToSave,
       [](auto& a) {
         a.tensors["base_model.model.lm_head.modules_to_save.weight"] = Numbers(4, 4);
       }},
      {"RankOfAnother", Reason::kShapeMismatch, [](auto& a) { a.First() = Numbers(7, 64); }},
      {"ShapeTransposed", Reason::kShapeMismatch, [](auto& a) { a.First().shape = {64, 8}; }},
      {"ShapeFlat", Reason::kShapeMismatch, [](auto& a) { a.First().shape = {512}; }},
      {"ShapeScalar", Reason::kShapeMismatch,
       [](auto& a) { a.First() = {"F32", {}, std::string(4, '\0')}; }},
      {"ShapeEmpty", Reason::kShapeMismatch, [](auto& a) { a.First() = {"F32", {0, 64}, ""}; }},
      {"NotANumber", Reason::kNonfinite,
       [](auto& a) { a.First().bytes.replace(2040, 4, "\xff\xff\xff\x7f", 4); }},
      {"Infinity", Reason::kNonfinite,
       [](auto& a) { a.First().bytes.replace(0, 4, std::string("\0\0\x80\xff", 4)); }},
      {"InfinityOnceRounded", Reason::kNonfinite,
       [](auto& a) { a.First().bytes.replace(0, 4, "\xff\xff\x7f\x7f", 4); }},
      {"NotANumberInHalf", Reason::kNonfinite,
       [](auto& a) {
         a.First() = Numbers(8, 64, 1, "BF16");
         a.First().bytes.replace(1022, 2, "\xc0\x7f", 2);
       }},
      {"InfinityInF16", Reason::kNonfinite,
       [](auto& a) {
         a.First() = Numbers(8, 64, 1, "BF16");
         a.First().dtype = "F16";
         a.First().bytes.assign(1024, '\0');
         a.First().bytes.replace(0, 2, std::string("\0\x7c", 2));
       }},
  };
}

}  // namespace rootstock
