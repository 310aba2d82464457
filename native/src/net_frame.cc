#include "net_frame.h"

namespace hvd {
namespace {

constexpr uint32_t kMaxPieceBytes = 1u << 29;  // a chunk of the largest payload; a plan's own limit is checked later
constexpr uint8_t kMaxStatus = 5;

uint32_t most_bytes(FrameType type) {
  switch (type) {
    case FrameType::kEager: return kMaxEagerBytes;
    case FrameType::kRing: return kMaxPieceBytes;
    case FrameType::kData: return kMaxDataBytes;
    case FrameType::kAbort: return kMaxTextBytes;
    default: return 0;
  }
}

}  // namespace

const char *check_frame(const Frame &frame) {
  if (frame.magic != kFrameMagic) return "a frame does not start as one";
  if (frame.type < FrameType::kEager || frame.type > FrameType::kBye) return "a frame of no known type";
  if (frame.bytes > most_bytes(frame.type)) return "a frame longer than its type allows";
  if (frame.type == FrameType::kData && frame.bytes == 0) return "a frame of no data";
  if (frame.status > kMaxStatus || (frame.status != 0 && frame.bytes != 0)) return "a frame with an impossible status";
  return nullptr;
}

}  // namespace hvd
