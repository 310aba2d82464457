#include "shm.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace hvd {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kColourSpan = 256 << 20;  // the address bits below this choose the place in a level 1 cache

// Ranks use the same offsets in mappings that are powers of two apart.  AMD's level 1 cache finds a line by a hash of bits 12 to
// 27 of its address (Lipp et al., "Take A Way", AsiaCCS 2020), so such lines would push each other out at every access: a sum
// of two buffers then takes three times as long.  Mappings of different colours start at different pages of the span.
char *map_descriptor(int fd, uint64_t bytes, uint32_t colour) {
  uint64_t room = bytes + 2 * kColourSpan;
  void *reserved = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  uint64_t start = reinterpret_cast<uint64_t>(reserved), end = start + room, length = (bytes + kPage - 1) / kPage * kPage;
  uint64_t base = (start + kColourSpan - 1) / kColourSpan * kColourSpan + colour * kPage % kColourSpan;
  void *at = reinterpret_cast<void *>(base);
  bool mapped = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0) == at;
  int cause = errno;
  munmap(reserved, mapped ? base - start : room);
  if (mapped) munmap(reinterpret_cast<void *>(base + length), end - base - length);
  errno = cause;
  return mapped ? static_cast<char *>(at) : nullptr;
}

int make_sealed(const char *name, uint64_t bytes) {
  int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -1;
  if (ftruncate(fd, static_cast<off_t>(bytes)) == 0 &&
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
    return fd;
  int cause = errno;
  close(fd);
  errno = cause;
  return -1;
}

}  // namespace

std::shared_ptr<Mapping> Mapping::create(const char *name, uint64_t bytes) {
  int fd = make_sealed(name, bytes);
  if (fd < 0) return nullptr;
  char *base = map_descriptor(fd, bytes, 0);
  if (base != nullptr) return std::shared_ptr<Mapping>(new Mapping(base, bytes, fd));
  int cause = errno;
  close(fd);
  errno = cause;
  return nullptr;
}

std::shared_ptr<Mapping> Mapping::open(int fd, uint32_t colour) {
  struct stat status {};
  int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || fstat(fd, &status) != 0) return nullptr;
  if ((seals & F_SEAL_SHRINK) == 0 || status.st_size <= 0) {
    errno = EINVAL;
    return nullptr;
  }
  uint64_t bytes = static_cast<uint64_t>(status.st_size);
  char *base = map_descriptor(fd, bytes, colour);
  return base == nullptr ? nullptr : std::shared_ptr<Mapping>(new Mapping(base, bytes, -1));
}

Mapping::~Mapping() {
  munmap(base_, bytes_);
  if (fd_ >= 0) close(fd_);
}

bool Mapping::contains(const void *pointer, uint64_t bytes) const {
  uintptr_t first = reinterpret_cast<uintptr_t>(base_), at = reinterpret_cast<uintptr_t>(pointer);
  return at >= first && at - first <= bytes_ && bytes <= bytes_ - (at - first);
}

uint64_t Mapping::offset_of(const void *pointer) const {
  return static_cast<uint64_t>(static_cast<const char *>(pointer) - base_);
}

uint64_t Mapping::resident_bytes() const {
  struct stat status {};
  if (fd_ < 0 || fstat(fd_, &status) != 0) return 0;
  return static_cast<uint64_t>(status.st_blocks) * 512;
}

void Mapping::advise(int advice, uint64_t offset, uint64_t bytes) const { madvise(base_ + offset, bytes, advice); }

bool Mapping::punch(uint64_t offset, uint64_t bytes) const {
  return fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                   static_cast<off_t>(bytes)) == 0;
}

}  // namespace hvd
