#include <string>
#include <vector>

#include "coordinator/rpc/adapters_service_fixture.h"
#include "gmock/gmock.h"

namespace rootstock {
namespace {

using ::testing::HasSubstr;

using AdaptersListTest = AdaptersServiceTest;

// More adapters than a message holds receipts of come in pages, each name once, whatever leaves
// meanwhile.
TEST_F(AdaptersListTest, AThousandAdaptersAreListedInPages) {
  constexpr int kAdapters = 1050;
  for (int i = 0; i < kAdapters; ++i) {
    ASSERT_TRUE(registry_->Register(absl::StrCat("a-", 10000 + i), "long", "default").ok());
  }
  ASSERT_TRUE(registry_->Register("theirs", "one", "other").ok());
  v1::ListAdaptersRequest request;
  v1::ListAdaptersResponse page;
  ASSERT_TRUE(List(request, &page).ok());
  EXPECT_EQ(page.adapters_size(), 100);
  EXPECT_EQ(engine_.status_calls, 1);

  request.set_page_size(1 << 30);
  const grpc::Status whole = List(request, &page);
  ASSERT_TRUE(whole.ok()) << whole.error_message();
  EXPECT_EQ(page.adapters_size(), 1000);

  request.set_page_size(99);
  std::vector<std::string> names;
  do {
    page.Clear();
    ASSERT_TRUE(List(request, &page).ok());
    for (const auto& adapter : page.adapters()) names.push_back(adapter.name());
    if (names.size() == 99) {
      ASSERT_EQ(Unregister(names.back()), 0u);
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  ASSERT_EQ(names.size(), kAdapters);
  for (int i = 0; i < kAdapters; ++i) EXPECT_EQ(names[i], absl::StrCat("a-", 10000 + i));

  v1::Adapter adapter;
  grpc::ClientContext context;
  v1::GetAdapterRequest get;
  get.set_name("a-10000");
  ASSERT_TRUE(stub_->Get(&context, get, &adapter).ok());
  EXPECT_EQ(adapter.receipt().modules_size(), 210);
}

// Places in many groups make summaries long: the page ends before the message is too large.
TEST_F(AdaptersListTest, APageEndsBeforeTheMessageIsTooLarge) {
  for (int i = 0; i < 100; ++i) {
    GroupStatus group;
    group.info = {.name = std::string(2000, 'g'), .tp_size = 1};
    group.geometry = {.num_pages = 10, .page_bytes = 65536, .page_tokens = 16};
    engine_.status.groups.push_back(group);
  }
  for (int i = 0; i < 25; ++i) {
    ASSERT_TRUE(registry_->Register(absl::StrCat("a-", i), "one", "default").ok());
  }
  v1::ListAdaptersRequest request;
  size_t names = 0;
  do {
    v1::ListAdaptersResponse page;
    const grpc::Status status = List(request, &page);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_GT(page.adapters_size(), 0);
    names += static_cast<size_t>(page.adapters_size());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(names, 25u);
}

TEST_F(AdaptersListTest, PagesThatNobodyGaveAreRefused) {
  for (const char* name : {"a", "b"}) {
    ASSERT_TRUE(registry_->Register(name, "one", "default").ok());
    ASSERT_TRUE(registry_->Register(name, "one", "other").ok());
  }
  v1::ListAdaptersRequest request;
  request.set_page_size(1);
  v1::ListAdaptersResponse page;
  ASSERT_TRUE(List(request, &page).ok());
  const auto refusal = [&](const std::string& tenant, int32_t size, const std::string& token) {
    request.set_tenant(tenant);
    request.set_page_size(size);
    request.set_page_token(token);
    v1::ListAdaptersResponse none;
    const grpc::Status status = List(request, &none);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  EXPECT_THAT(refusal("other", 1, page.next_page_token()), HasSubstr("page_token="));
  EXPECT_THAT(refusal("", 1, "never"), HasSubstr("page_token=never"));
  EXPECT_THAT(refusal("", -1, ""), HasSubstr("page_size=-1"));
}

}  // namespace
}  // namespace rootstock
