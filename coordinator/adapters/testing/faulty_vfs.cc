#include "coordinator/adapters/testing/faulty_vfs.h"

#include <sqlite3.h>

#include <algorithm>
#include <filesystem>

namespace rootstock {

// What SQLite has of an open file; the real one's lies behind it.
struct FaultyVfsFile {
  sqlite3_file base;
  sqlite3_file* real;
  FaultyVfs* owner;
  std::string* name;

  static FaultyVfsFile* Of(sqlite3_file* file) { return reinterpret_cast<FaultyVfsFile*>(file); }
  static sqlite3_file* RealOf(sqlite3_file* file) { return Of(file)->real; }

  int Do(FaultyVfs::Event event, const std::function<int()>& act) const {
    if (owner->fail) {
      if (const int code = owner->fail(event.kind); code != SQLITE_OK) return code;
    }
    const int code = act();
    if (code == SQLITE_OK && owner->record != nullptr) {
      event.file = *name;
      owner->record->push_back(std::move(event));
    }
    return code;
  }
};

namespace {

int Close(sqlite3_file* file) {
  FaultyVfsFile* f = FaultyVfsFile::Of(file);
  const int code = f->real->pMethods->xClose(f->real);
  delete f->name;
  return code;
}
int Read(sqlite3_file* file, void* data, int bytes, sqlite3_int64 offset) {
  sqlite3_file* real = FaultyVfsFile::RealOf(file);
  return real->pMethods->xRead(real, data, bytes, offset);
}
int Write(sqlite3_file* file, const void* data, int bytes, sqlite3_int64 offset) {
  const FaultyVfsFile* f = FaultyVfsFile::Of(file);
  return f->Do({FaultyVfs::Event::kWrite, "", offset,
                std::string(static_cast<const char*>(data), static_cast<size_t>(bytes))},
               [&] { return f->real->pMethods->xWrite(f->real, data, bytes, offset); });
}
int Truncate(sqlite3_file* file, sqlite3_int64 size) {
  const FaultyVfsFile* f = FaultyVfsFile::Of(file);
  return f->Do({FaultyVfs::Event::kTruncate, "", size, ""},
               [&] { return f->real->pMethods->xTruncate(f->real, size); });
}
int Sync(sqlite3_file* file, int flags) {
  const FaultyVfsFile* f = FaultyVfsFile::Of(file);
  return f->Do({FaultyVfs::Event::kSync, "", 0, ""},
               [&] { return f->real->pMethods->xSync(f->real, flags); });
}
int FileSize(sqlite3_file* file, sqlite3_int64* size) {
  sqlite3_file* real = FaultyVfsFile::RealOf(file);
  return real->pMethods->xFileSize(real, size);
}
int Lock(sqlite3_file* file, int level) {
  sqlite3_file* real = FaultyVfsFile::RealOf(file);
  return real->pMethods->xLock(real, level);
}
int Unlock(sqlite3_file* file, int level) {
  sqlite3_file* real = FaultyVfsFile::RealOf(file);
  return real->pMethods->xUnlock(real, level);
}
int CheckReservedLock(sqlite3_file* file, int* out) {
  sqlite3_file* real = FaultyVfsFile::RealOf(file);
  return real->pMethods->xCheckReservedLock(real, out);
}
int FileControl(sqlite3_file* file, int op, void* argument) {
  sqlite3_file* real = FaultyVfsFile::RealOf(file);
  return real->pMethods->xFileControl(real, op, argument);
}
int SectorSize(sqlite3_file* file) {
  sqlite3_file* real = FaultyVfsFile::RealOf(file);
  return real->pMethods->xSectorSize(real);
}
int DeviceCharacteristics(sqlite3_file* file) {
  sqlite3_file* real = FaultyVfsFile::RealOf(file);
  return real->pMethods->xDeviceCharacteristics(real);
}
int ShmMap(sqlite3_file* file, int page, int bytes, int extend, void volatile** out) {
  sqlite3_file* real = FaultyVfsFile::RealOf(file);
  return real->pMethods->xShmMap(real, page, bytes, extend, out);
}
int ShmLock(sqlite3_file* file, int offset, int n, int flags) {
  sqlite3_file* real = FaultyVfsFile::RealOf(file);
  return real->pMethods->xShmLock(real, offset, n, flags);
}
void ShmBarrier(sqlite3_file* file) {
  sqlite3_file* real = FaultyVfsFile::RealOf(file);
  real->pMethods->xShmBarrier(real);
}
int ShmUnmap(sqlite3_file* file, int remove) {
  sqlite3_file* real = FaultyVfsFile::RealOf(file);
  return real->pMethods->xShmUnmap(real, remove);
}

// Version 2: no memory maps, which would write past us.
constexpr sqlite3_io_methods kMethods = {2,
                                         Close,
                                         Read,
                                         Write,
                                         Truncate,
                                         Sync,
                                         FileSize,
                                         Lock,
                                         Unlock,
                                         CheckReservedLock,
                                         FileControl,
                                         SectorSize,
                                         DeviceCharacteristics,
                                         ShmMap,
                                         ShmLock,
                                         ShmBarrier,
                                         ShmUnmap};

struct Shim {
  sqlite3_vfs vfs;
  sqlite3_vfs* real;
  FaultyVfs* owner;
};

int Open(sqlite3_vfs* vfs, const char* path, sqlite3_file* file, int flags, int* out) {
  const auto* shim = static_cast<const Shim*>(vfs->pAppData);
  FaultyVfsFile* f = FaultyVfsFile::Of(file);
  f->real = reinterpret_cast<sqlite3_file*>(f + 1);
  f->owner = shim->owner;
  f->base.pMethods = nullptr;
  const int code = shim->real->xOpen(shim->real, path, f->real, flags, out);
  if (code != SQLITE_OK) return code;
  f->name = new std::string(path == nullptr ? "" : std::filesystem::path(path).filename().string());
  f->base.pMethods = &kMethods;
  return SQLITE_OK;
}

}  // namespace

FaultyVfs::FaultyVfs() : real_(sqlite3_vfs_find(nullptr)) {
  auto* shim = new Shim{*real_, real_, this};
  shim->vfs.zName = "faulty";
  shim->vfs.szOsFile = static_cast<int>(sizeof(FaultyVfsFile)) + real_->szOsFile;
  shim->vfs.pAppData = shim;
  shim->vfs.xOpen = Open;
  shim_ = &shim->vfs;
  sqlite3_vfs_register(shim_, 1);
}

FaultyVfs::~FaultyVfs() {
  sqlite3_vfs_unregister(shim_);
  sqlite3_vfs_register(real_, 1);
  delete static_cast<Shim*>(shim_->pAppData);
}

void Apply(const FaultyVfs::Event& event, FileImages& files) {
  std::string& file = files[event.file];
  const auto offset = static_cast<size_t>(event.offset);
  if (event.kind == FaultyVfs::Event::kTruncate) file.resize(offset);
  if (event.kind != FaultyVfs::Event::kWrite) return;
  file.resize(std::max(file.size(), offset + event.bytes.size()));
  file.replace(offset, event.bytes.size(), event.bytes);
}

}  // namespace rootstock
