#include "coordinator/cluster/group_service.h"

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <fstream>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/wire/plan_wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rootstock/v1/group.grpc.pb.h"

namespace rootstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What happened, in order; tests wait for the next entry. Thread-safe.
class Events {
 public:
  void Add(std::string event) {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    wake_.notify_all();
  }
  std::vector<std::string> WaitFor(size_t count) {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, std::chrono::seconds(20), [&] { return events_.size() >= count; });
    return events_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::string> events_;
};

class FakeDirectory : public GroupDirectory {
 public:
  class Listener : public GroupListener {
   public:
    explicit Listener(Events* events, uint64_t attach) : events_(events), attach_(attach) {}
    void OnCompletion(Completion completion) override {
      events_->Add(absl::StrCat("completion ", completion.id.value));
    }
    void OnLeaving() override { events_->Add("leaving"); }
    void OnLost(const absl::Status&) override { events_->Add(absl::StrCat("lost ", attach_)); }

   private:
    Events* const events_;
    const uint64_t attach_;
  };

  absl::StatusOr<Order> OnHello(const GroupInfo& info) override {
    if (info.pool != "unified") {
      return InvalidField(Reason::kGroupMismatch, "pool", info.pool, "not served");
    }
    const uint64_t attach = ++attaches_;
    events.Add(absl::StrCat("hello ", attach));
    return Order{Epoch{7, attach}, GroupLimits{.max_model_len = 128}};
  }
  absl::StatusOr<std::shared_ptr<GroupListener>> OnAttached(
      const GroupInfo&, const AttachReport& report, std::shared_ptr<GroupLink> new_link) override {
    if (report.geometry.num_pages < 3) {
      return InvalidField(Reason::kGroupMismatch, "num_pages", "2", "too few");
    }
    link = std::move(new_link);
    events.Add(absl::StrCat("attached ", report.epoch.attach));
    return std::make_shared<Listener>(&events, report.epoch.attach);
  }

  void OnFormingLost(const std::string& group, const Epoch& epoch) override {
    events.Add(absl::StrCat("forming lost ", group, " ", epoch.attach));
  }

  Events events;
  std::shared_ptr<GroupLink> link;

 private:
  std::atomic<uint64_t> attaches_ = 0;
};

// A group's leader, as a blocking client.
class FakeGroup {
 public:
  explicit FakeGroup(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::Group::NewStub(channel)), stream_(stub_->Attach(&context_)) {}

  bool Hello(const std::string& pool = "unified") {
    GroupInfo info{.name = "g0", .pool = pool, .build = "b", .tp_size = 1};
    info.ranks.push_back({.host = "h", .device = "cpu", .build = "b"});
    v1::GroupMessage message;
    ToProto(info, message.mutable_hello());
    return stream_->Write(message);
  }
  bool Report(const Epoch& epoch, uint32_t num_pages = 10) {
    AttachReport report;
    report.epoch = epoch;
    report.geometry = {.num_pages = num_pages, .page_bytes = 4096, .page_tokens = 16};
    v1::GroupMessage message;
    ToProto(report, message.mutable_report());
    return stream_->Write(message);
  }
  bool Complete(uint64_t id) {
    v1::GroupMessage message;
    Completion completion;
    completion.id = CommandId(id);
    ToProto(completion, message.mutable_completion());
    return stream_->Write(message);
  }
  bool Leaving() {
    v1::GroupMessage message;
    message.mutable_leaving();
    return stream_->Write(message);
  }
  v1::CoordinatorMessage Read() {
    v1::CoordinatorMessage message;
    stream_->Read(&message);
    return message;
  }
  void Attach() {
    EXPECT_TRUE(Hello());
    const auto order = Read();
    ASSERT_TRUE(order.has_attach());
    EXPECT_TRUE(Report(FromProto(order.attach())->epoch));
  }
  void Cancel() { context_.TryCancel(); }
  void HalfClose() { stream_->WritesDone(); }
  grpc::Status End() {
    v1::CoordinatorMessage message;
    while (stream_->Read(&message)) {
    }
    return stream_->Finish();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::Group::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::GroupMessage, v1::CoordinatorMessage>> stream_;
};

class GroupServiceTest : public ::testing::Test {
 protected:
  GroupServiceTest()
      : groups_(&directory_, [this](int count) { attached_.Add(absl::StrCat(count)); }),
        blobs_({.open = [this](const Digest& digest) -> absl::StatusOr<std::ifstream> {
                  if (digest == Digest{}) return absl::NotFoundError("no such digest");
                  return std::ifstream(blob_, std::ios::binary);
                },
                .is_on_disk = [this](const Digest&) { return !is_away_; },
                .read = [this](const std::function<void()>& job) { return Post(job); },
                .fetch = [](const std::function<void()>&) { return false; },  // all wait for stores
                .doubt = [this](const Digest& digest) { doubts_.Add(digest.Short()); }}) {
    grpc::ServerBuilder builder;
    builder.RegisterService(groups_.service());
    builder.RegisterService(blobs_.service());
    server_ = builder.BuildAndStart();
    channel_ = server_->InProcessChannel({});
  }
  ~GroupServiceTest() override { server_->Shutdown(std::chrono::system_clock::now()); }
  bool Post(const std::function<void()>& job) const {
    if (!busy_) job();
    return !busy_;
  }

  FakeDirectory directory_;
  Events attached_, doubts_;
  bool busy_ = false;     // no thread reads blobs
  bool is_away_ = false;  // they are not on the disk
  std::filesystem::path blob_ = ::testing::TempDir() + "/blob";
  GroupService groups_;
  BlobService blobs_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(GroupServiceTest, AttachThenCommandsAndCompletionsInOrder) {
  FakeGroup group(channel_);
  group.Attach();
  directory_.events.WaitFor(2);
  for (uint64_t id = 1; id <= 500; ++id) {
    directory_.link->Send({CommandId(id), Epoch{7, 1}, ReleaseSlots{{SequenceSlot(id)}}});
  }
  for (uint64_t id = 1; id <= 500; ++id) {
    const auto message = group.Read();
    ASSERT_EQ(message.command().id(), id);
    ASSERT_EQ(message.command().release().slots(0), id);
    ASSERT_TRUE(group.Complete(id));
  }
  const auto events = directory_.events.WaitFor(502);
  ASSERT_EQ(events.size(), 502u);
  EXPECT_THAT(std::vector(events.begin(), events.begin() + 3),
              ElementsAre("hello 1", "attached 1", "completion 1"));
  EXPECT_EQ(events.back(), "completion 500");
  EXPECT_THAT(attached_.WaitFor(1), ElementsAre("1"));
}

TEST_F(GroupServiceTest, ARefusedGroupHearsWhy) {
  FakeGroup group(channel_);
  group.Hello("other");
  const auto message = group.Read();
  EXPECT_EQ(message.refuse().reason(), "group_mismatch");
  EXPECT_THAT(message.refuse().message(), HasSubstr("pool=other"));
  EXPECT_EQ(group.End().error_code(), grpc::StatusCode::INVALID_ARGUMENT);

  FakeGroup second(channel_);
  second.Hello();
  second.Report(FromProto(second.Read().attach())->epoch, /*num_pages=*/2);
  EXPECT_THAT(second.Read().refuse().message(), HasSubstr("num_pages=2: too few"));
  EXPECT_THAT(directory_.events.WaitFor(2), ElementsAre("hello 1", "forming lost g0 1"));
}

TEST_F(GroupServiceTest, MessagesOutOfTurnAndStaleReportsAreRefused) {
  FakeGroup early(channel_);
  early.Complete(1);
  EXPECT_THAT(early.Read().refuse().message(), HasSubstr("completion"));
  FakeGroup stale(channel_);
  stale.Hello();
  stale.Read();
  stale.Report(Epoch{6, 1});
  EXPECT_EQ(stale.Read().refuse().reason(), "stale_epoch");
  FakeGroup empty_handed(channel_);
  empty_handed.HalfClose();
  EXPECT_TRUE(empty_handed.End().ok());
}

TEST_F(GroupServiceTest, AGroupThatObeysNoEpochIsTold) {
  InitLogging("test", LogLevel::kInfo);
  testing::internal::CaptureStderr();
  FakeGroup group(channel_);
  group.Hello();
  group.Read();
  group.HalfClose();
  EXPECT_TRUE(group.End().ok());
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("group g0 left without obeying epoch 7.1"));
}

TEST_F(GroupServiceTest, ANewerStreamEndsTheOlder) {
  FakeGroup older(channel_);
  older.Attach();
  directory_.events.WaitFor(2);
  const auto old_link = directory_.link;
  FakeGroup newer(channel_);
  newer.Attach();
  EXPECT_EQ(older.End().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(directory_.events.WaitFor(5),
              ElementsAre("hello 1", "attached 1", "hello 2", "lost 1", "attached 2"));
  EXPECT_THAT(attached_.WaitFor(3), ElementsAre("1", "0", "1"));
  old_link->Send({CommandId(1), Epoch{7, 1}, ReleaseSlots{}});  // to nobody
  directory_.link->Send({CommandId(2), Epoch{7, 2}, ReleaseSlots{}});
  EXPECT_EQ(newer.Read().command().id(), 2u);
}

TEST_F(GroupServiceTest, ARefusedStreamLeavesTheCurrentOneAlone) {
  FakeGroup current(channel_);
  current.Attach();
  directory_.events.WaitFor(2);
  FakeGroup bad(channel_);
  bad.Hello("other");
  EXPECT_FALSE(bad.End().ok());
  directory_.link->Send({CommandId(1), Epoch{7, 1}, ReleaseSlots{}});
  EXPECT_EQ(current.Read().command().id(), 1u);
}

TEST_F(GroupServiceTest, LossIsToldOnce) {
  FakeGroup group(channel_);
  group.Attach();
  directory_.events.WaitFor(2);
  group.Cancel();
  EXPECT_THAT(directory_.events.WaitFor(3), ElementsAre("hello 1", "attached 1", "lost 1"));
  directory_.link->Send({CommandId(1), Epoch{7, 1}, ReleaseSlots{}});
  FakeGroup again(channel_);
  again.Attach();
  const auto events = directory_.events.WaitFor(5);
  EXPECT_EQ(events.back(), "attached 2");
}

TEST_F(GroupServiceTest, AStreamThatEndsBeforeItsAttachIsTold) {
  FakeGroup gone(channel_);
  gone.Hello();
  gone.Read();
  gone.Cancel();
  EXPECT_EQ(directory_.events.WaitFor(2).back(), "forming lost g0 1");
  FakeGroup refused(channel_);
  refused.Hello();
  refused.Report(FromProto(refused.Read().attach())->epoch, /*num_pages=*/2);
  EXPECT_FALSE(refused.End().ok());
  EXPECT_EQ(directory_.events.WaitFor(4).back(), "forming lost g0 2");
  FakeGroup whole(channel_);
  whole.Attach();
  directory_.events.WaitFor(6);
  whole.Cancel();
  EXPECT_EQ(directory_.events.WaitFor(7).back(), "lost 3");
}

TEST_F(GroupServiceTest, LeavingAndLeave) {
  FakeGroup group(channel_);
  group.Attach();
  group.Leaving();
  EXPECT_EQ(directory_.events.WaitFor(3).back(), "leaving");
  directory_.link->SendLeave();
  EXPECT_TRUE(group.Read().has_leave());
  group.HalfClose();
  EXPECT_TRUE(group.End().ok());
  EXPECT_EQ(directory_.events.WaitFor(4).back(), "lost 1");
}

TEST_F(GroupServiceTest, ACommandTooLargeLosesTheGroupAndNotTheServer) {
  FakeGroup group(channel_);
  group.Attach();
  directory_.events.WaitFor(2);
  StepPlan plan;
  plan.rows.resize(1);
  plan.rows[0].tokens.assign(5'000'000, 1);
  directory_.link->Send({CommandId(1), Epoch{7, 1}, plan});
  EXPECT_FALSE(group.End().ok());
  EXPECT_EQ(directory_.events.WaitFor(3).back(), "lost 1");
}

TEST_F(GroupServiceTest, CloseEndsTheStreamOfAGroupThatHangs) {
  FakeGroup group(channel_);
  group.Attach();
  directory_.events.WaitFor(2);
  StepPlan plan;
  plan.rows.resize(1);
  plan.rows[0].tokens.assign(100'000, 1);
  // More than the transport takes while nobody reads.
  for (uint64_t id = 1; id <= 50; ++id) directory_.link->Send({CommandId(id), Epoch{7, 1}, plan});
  directory_.link->Close(absl::UnavailableError("step 1 took too long"));
  EXPECT_EQ(directory_.events.WaitFor(3).back(), "lost 1");
  EXPECT_FALSE(group.End().ok());
  directory_.link->Close(absl::UnavailableError("again"));
  FakeGroup again(channel_);
  again.Attach();
  EXPECT_EQ(directory_.events.WaitFor(5).back(), "attached 2");
}

TEST_F(GroupServiceTest, BlobsComeInChunks) {
  std::string content(2'500'000, 'x');
  for (size_t i = 0; i < content.size(); i += 977) content[i] = static_cast<char>('a' + i % 26);
  std::ofstream(blob_, std::ios::binary) << content;
  const Digest digest = Sha256Of(content);
  const auto stub = v1::Blobs::NewStub(channel_);
  const auto fetch = [&](const std::string& digest, std::vector<size_t>* sizes) {
    grpc::ClientContext context;
    v1::FetchRequest request;
    request.set_digest(digest);
    auto reader = stub->Fetch(&context, request);
    std::string got;
    v1::FetchChunk chunk;
    while (reader->Read(&chunk)) {
      EXPECT_EQ(chunk.total_bytes(), got.empty() ? content.size() : 0u);
      got += chunk.data();
      sizes->push_back(chunk.data().size());
    }
    return std::make_pair(reader->Finish(), got);
  };
  std::vector<size_t> sizes;
  auto [status, got] = fetch(DigestToBytes(digest), &sizes);
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(got, content);
  EXPECT_THAT(sizes, ElementsAre(1u << 20, 1u << 20, 2'500'000u - (2u << 20)));
  EXPECT_EQ(fetch(std::string(32, '\0'), &sizes).first.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(fetch("short", &sizes).first.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  // What the disk has spoilt is told, and not handed out as if it were the content.
  content[2'000'000] ^= 1;
  std::ofstream(blob_, std::ios::binary) << content;
  status = fetch(DigestToBytes(digest), &sizes).first;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_THAT(doubts_.WaitFor(1), ElementsAre(digest.Short()));
  std::filesystem::remove(blob_);
  std::filesystem::create_directory(blob_);  // opens, and can't be read
  EXPECT_EQ(fetch(DigestToBytes(digest), &sizes).first.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(doubts_.WaitFor(2).size(), 2u);
  std::filesystem::remove(blob_);
  for (bool* blocked : {&busy_, &is_away_}) {
    *blocked = true;
    EXPECT_EQ(fetch(std::string(32, '\1'), &sizes).first.error_code(),
              grpc::StatusCode::RESOURCE_EXHAUSTED);
    *blocked = false;
  }
}

}  // namespace
}  // namespace rootstock
