#include "coordinator/rpc/aliases_service.h"

#include <map>
#include <string>
#include <vector>

#include "coordinator/rpc/adapters_service_fixture.h"
#include "gmock/gmock.h"

namespace rootstock {
namespace {

using ::testing::ElementsAre;

class AliasesServiceTest : public AdaptersServiceTest {
 protected:
  void SetUp() override {
    AdaptersServiceTest::SetUp();
    ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
    ASSERT_TRUE(registry_->Register("a", "two", "default", true).ok());
  }

  grpc::Status Set(const std::string& name, std::vector<std::pair<uint32_t, uint32_t>> targets,
                   v1::Alias* out, uint64_t expected = 0) {
    grpc::ClientContext context;
    v1::SetAliasRequest request;
    request.set_name(name);
    for (const auto& [version, weight] : targets) {
      v1::AliasTarget* target = request.add_targets();
      target->set_name("a");
      target->set_version(version);
      target->set_weight(weight);
    }
    request.set_expected_revision(expected);
    return alias_stub_->Set(&context, request, out);
  }
  grpc::Status Rollback(const std::string& name, uint64_t to, v1::Alias* out) {
    grpc::ClientContext context;
    v1::RollbackAliasRequest request;
    request.set_name(name);
    request.set_to_revision(to);
    return alias_stub_->Rollback(&context, request, out);
  }
};

TEST_F(AliasesServiceTest, SetShowRollBackRemove) {
  v1::Alias alias;
  ASSERT_TRUE(Set("prod", {{1, 0}}, &alias).ok());
  EXPECT_EQ(alias.tenant(), "default");
  EXPECT_EQ(alias.revision(), 1u);
  EXPECT_EQ(alias.targets(0).weight(), 1u);
  EXPECT_EQ(alias.changed_unix_ms(), 1000);
  alias.Clear();
  ASSERT_TRUE(Set("prod", {{1, 9}, {0, 1}}, &alias).ok());
  EXPECT_EQ(alias.targets(1).version(), 2u);
  alias.Clear();
  EXPECT_EQ(Set("prod", {{2, 1}}, &alias, 1).error_code(), grpc::StatusCode::ABORTED);
  ASSERT_TRUE(Rollback("prod", 0, &alias).ok());
  EXPECT_EQ(alias.revision(), 3u);
  EXPECT_EQ(alias.rolled_back_to(), 1u);

  v1::AliasWithHistory shown;
  v1::GetAliasRequest get;
  get.set_name("prod");
  {
    grpc::ClientContext context;
    ASSERT_TRUE(alias_stub_->Get(&context, get, &shown).ok());
  }
  EXPECT_EQ(shown.alias().revision(), 3u);
  ASSERT_EQ(shown.history_size(), 3);
  EXPECT_EQ(shown.history(2).revision(), 1u);
  get.set_history(1);
  {
    grpc::ClientContext context;
    ASSERT_TRUE(alias_stub_->Get(&context, get, &shown).ok());
    EXPECT_EQ(shown.history_size(), 1);
  }

  const auto remove = [&](const char* name) {
    grpc::ClientContext context;
    v1::RemoveAliasRequest request;
    request.set_name(name);
    v1::RemoveAliasResponse none;
    return alias_stub_->Remove(&context, request, &none).error_code();
  };
  EXPECT_EQ(remove("prod"), grpc::StatusCode::OK);
  EXPECT_EQ(remove("prod"), grpc::StatusCode::OK);  // again
  EXPECT_EQ(remove("never"), grpc::StatusCode::NOT_FOUND);
}

TEST_F(AliasesServiceTest, AreListedInPagesOfOneTenant) {
  v1::Alias alias;
  for (const char* name : {"x", "y", "z"}) ASSERT_TRUE(Set(name, {{1, 1}}, &alias).ok());
  std::vector<std::string> names;
  v1::ListAliasesRequest request;
  request.set_page_size(2);
  do {
    grpc::ClientContext context;
    v1::ListAliasesResponse page;
    ASSERT_TRUE(alias_stub_->List(&context, request, &page).ok());
    EXPECT_LE(page.aliases_size(), 2);
    for (const v1::Alias& found : page.aliases()) names.push_back(found.name());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_THAT(names, ElementsAre("x", "y", "z"));
}

// What a client reads of versions, aliases and pins is said by Get and by List.
TEST_F(AliasesServiceTest, AnAdapterSaysItsVersionAliasesAndPins) {
  v1::Alias alias;
  ASSERT_TRUE(Set("prod", {{1, 1}}, &alias).ok());
  v1::PinRequest pin;
  pin.set_name("a");
  pin.set_version(1);
  v1::PinResponse pins;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->Pin(&context, pin, &pins).ok());
    EXPECT_THAT(pins.pins(), ElementsAre("*"));
  }
  v1::ListAdaptersResponse list;
  ASSERT_TRUE(List({}, &list).ok());
  ASSERT_EQ(list.adapters_size(), 2);
  EXPECT_EQ(list.adapters(0).version(), 1u);
  EXPECT_FALSE(list.adapters(0).newest());
  EXPECT_THAT(list.adapters(0).aliases(), ElementsAre("prod"));
  EXPECT_THAT(list.adapters(0).pins(), ElementsAre("*"));
  EXPECT_TRUE(list.adapters(1).newest());
  EXPECT_TRUE(list.adapters(1).aliases().empty());
  {
    grpc::ClientContext context;
    v1::GetAdapterRequest get;
    get.set_name("a");
    get.set_version(1);
    v1::Adapter adapter;
    ASSERT_TRUE(stub_->Get(&context, get, &adapter).ok());
    EXPECT_EQ(adapter.digest(), Sha256Of("one").Hex());
    EXPECT_THAT(adapter.aliases(), ElementsAre("prod"));
  }
  {
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->Unpin(&context, pin, &pins).ok());
    EXPECT_TRUE(pins.pins().empty());
  }
}

TEST_F(AliasesServiceTest, AVersionLeavesAloneAndTheNameWithAll) {
  v1::Alias alias;
  ASSERT_TRUE(Set("prod", {{1, 1}}, &alias).ok());
  const auto unregister = [&](uint32_t version) {
    grpc::ClientContext context;
    v1::UnregisterRequest request;
    request.set_name("a");
    request.set_version(version);
    v1::UnregisterResponse response;
    return stub_->Unregister(&context, request, &response);
  };
  const grpc::Status held = unregister(0);
  EXPECT_EQ(held.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(held.error_message(), ::testing::HasSubstr("prod"));
  EXPECT_TRUE(unregister(2).ok());
  ASSERT_TRUE(registry_->RemoveAlias("prod", "default").ok());
  EXPECT_TRUE(unregister(0).ok());
  EXPECT_EQ(registry_->size(), 0u);
}

}  // namespace
}  // namespace rootstock
