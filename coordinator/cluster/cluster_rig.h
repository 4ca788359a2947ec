// Test peers of the services: a directory that writes down what it hears, a group, and a server.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/wire/plan_wire.h"
#include "coordinator/cluster/group_service.h"
#include "rootstock/v1/group.grpc.pb.h"

namespace rootstock {

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
                  if (!refused_.ok()) return refused_;
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
  absl::Status refused_;  // a read's end
  std::filesystem::path blob_ = ::testing::TempDir() + "/blob";
  GroupService groups_;
  BlobService blobs_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace rootstock
