// Shared memory: a sealed memfd and its mapping.  Owns address ranges and descriptors; knows nothing of what lies inside.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace hvd {

// One mapping of one memfd.  Movable by pointer only, so that addresses stay valid for everybody who holds it.
class Mapping {
 public:
  // Makes a memfd of `bytes`, seals it against shrinking and growing and maps it; null with errno set on failure.
  static std::shared_ptr<Mapping> create(const char *name, uint64_t bytes);
  // Maps all of a descriptor made by create() in another process.  Refuses what can shrink: that would be a SIGBUS later.
  // Mappings that are read together must have different colours; create() gives colour 0.
  static std::shared_ptr<Mapping> open(int fd, uint32_t colour);
  ~Mapping();
  Mapping(const Mapping &) = delete;
  Mapping &operator=(const Mapping &) = delete;

  char *base() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_; }  // -1 unless made by create()
  bool contains(const void *pointer, uint64_t bytes) const;
  uint64_t offset_of(const void *pointer) const;
  uint64_t resident_bytes() const;
  void advise(int advice, uint64_t offset, uint64_t bytes) const;
  void advise_all(int advice) const { advise(advice, 0, bytes_); }
  bool punch(uint64_t offset, uint64_t bytes) const;

 private:
  Mapping(char *base, uint64_t bytes, int fd) : base_(base), bytes_(bytes), fd_(fd) {}
  char *base_;
  uint64_t bytes_;
  int fd_;
};

}  // namespace hvd
