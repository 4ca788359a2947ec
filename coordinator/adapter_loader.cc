#include "coordinator/adapter_loader.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/status.h"

namespace rootstock {

AdapterLoader MakeAdapterLoader(ModelSpec model, std::string served_name,
                                const PeftLimits& limits) {
  return [model = std::move(model), served_name = std::move(served_name),
          limits](const std::filesystem::path& directory) -> absl::StatusOr<LoadedAdapter> {
    ASSIGN_OR_RETURN(const PeftAdapter adapter, LoadPeftAdapter(directory, model, limits));
    std::string blob = EncodeCanonical(adapter, model);
    const Receipt receipt = MakeReceipt(adapter, model, blob, served_name);
    return LoadedAdapter{receipt.digest, adapter.spec, ReceiptToJson(receipt), std::move(blob),
                         ConfigToJson(receipt)};
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
