#include "coordinator/adapter_loader.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/status.h"
#include "coordinator/load_memory.h"

namespace rootstock {
namespace {

constexpr uint64_t kCopies = 2;  // the tensors, and the canonical bytes that are made of them

}  // namespace

AdapterLoader MakeAdapterLoader(ModelSpec model, std::string served_name,
                                const PeftLimits& limits) {
  return [model = std::move(model), served_name = std::move(served_name), limits,
          memory = LoadMemory::Of(kCopies * limits.max_bytes)](
             const std::filesystem::path& directory) -> absl::StatusOr<LoadedAdapter> {
    std::shared_ptr<LoadMemory::Share> share;
    const auto take_memory = [&](uint64_t bytes) { share = memory->Take(kCopies * bytes); };
    LoadedAdapter out;
    {
      ASSIGN_OR_RETURN(const PeftAdapter adapter,
                       LoadPeftAdapter(directory, model, limits, take_memory));
      out.canonical = EncodeCanonical(adapter, model);
      const Receipt receipt = MakeReceipt(adapter, model, out.canonical, served_name);
      out.digest = receipt.digest;
      out.spec = adapter.spec;
      out.receipt_json = ReceiptToJson(receipt);
      out.config_json = ConfigToJson(receipt);
    }
    share->ShrinkTo(out.canonical.size());
    out.memory = std::move(share);
    return out;
  };
}

std::string ReceiptToJson(const Receipt& receipt) {
  nlohmann::json modules = nlohmann::json::array();
  for (const ReceiptModule& module : receipt.modules) {
    modules.push_back({{"module", ModulePath(module.layer, module.module)},
                       {"lora_rank", module.lora_rank},
                       {"scale", module.scale},
                       {"delta_frobenius", module.delta_frobenius}});
  }
  const nlohmann::json out = {{"file_dtype", receipt.file_dtype},
                              {"max_rounding", receipt.max_rounding},
                              {"modules", std::move(modules)}};
  return out.dump();
}

std::string ConfigToJson(const Receipt& receipt) {
  const nlohmann::json out = {{"base_model_name", receipt.base_model_name},
                              {"base_name_warning", receipt.base_name_warning},
                              {"harmless_fields", receipt.harmless_fields}};
  // Names come from files: what is no UTF-8 in them must not lose the receipt.
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace rootstock
