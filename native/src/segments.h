// A payload made of segments: where each lies in the linear payload, and copies between the two.
#pragma once
#include <vector>

#include "hvd.h"

namespace hvd {

class Segments {
 public:
  Segments() = default;
  // `align`: each start is rounded up to it (1: no padding).
  bool assign(const hvd_segment *segments, uint32_t n, uint64_t align, bool needs_out);
  uint64_t bytes() const { return bytes_; }
  // Copies [at, at + length) of the payload out of the inputs; padding becomes zero.
  void gather(uint64_t at, uint64_t length, char *to) const;
  // Copies it into the outputs; padding is dropped.
  void scatter(uint64_t at, uint64_t length, const char *from) const;
  // The payload already lies at one address, in this layout, with each input being its output; null if not.
  void *in_place() const;
  const hvd_segment *only() const { return parts_.size() == 1 ? &parts_[0].segment : nullptr; }
  void clear() { parts_.clear(), bytes_ = 0; }

 private:
  struct Part {
    hvd_segment segment;
    uint64_t start;
  };
  size_t first_part_at(uint64_t at) const;
  std::vector<Part> parts_;
  uint64_t bytes_ = 0;
};

}  // namespace hvd
