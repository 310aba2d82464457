// What travels between agents: frames of a fixed header and a payload.  Integers are little-endian.  Nothing that came over the
// wire is used before check_frame() and the owner of the frame's type have looked at it.
//
//   type    index    value         extra          step       payload               spends tokens
//   EAGER                                         credited   a host's partial sum  unless credited
//   WANT                                                     -                     no
//   RING    chunk                                 step       a piece               no
//   CREDIT  chunk                                            -                     no
//   META    member   data bytes    bytes to come  n_meta     -                     yes
//   DATA    member   offset                       0 meta     part of meta or data  yes
//                                                 1 data
//   GIVE_UP                                                  -                     no
//   TOKENS           bytes granted                           -                     no
//   PING                                                     -                     no
//   ABORT                                                    text                  no
//   BYE                                                      -                     no
//
// `status` is a negated hvd_status: where a payload is missing because its sender failed to make it.
// GIVE_UP: this round, and those after it, never finish (net_withdraw.cc).
// CREDIT of an eager round says that it has begun: who has a part may send it without tokens.
// WANT asks for the credit that an eager frame needs when there are no tokens for it: its sender says that it has data.
#pragma once
#include <cstdint>

namespace hvd {

enum class FrameType : uint8_t { kEager = 1, kWant, kRing, kCredit, kMeta, kData, kGiveUp, kTokens, kPing, kAbort, kBye };

constexpr uint16_t kFrameMagic = 0x4876;
constexpr uint32_t kMaxEagerBytes = 256 << 10;  // largest payload that hosts can send whole
constexpr uint32_t kMaxDataBytes = 128 << 10;   // of one DATA frame
constexpr uint32_t kMaxTextBytes = 1000;
constexpr uint32_t kTokenOverhead = 64;         // so that empty frames are not free

struct Frame {
  uint16_t magic = kFrameMagic;
  FrameType type = FrameType::kPing;
  uint8_t status = 0;
  uint32_t index = 0;
  uint64_t plan_id = 0, round = 0, value = 0, extra = 0;
  uint32_t step = 0, bytes = 0;
};
static_assert(sizeof(Frame) == 48, "the wire format has no padding");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are copied as they lie in memory");

// Null, or what is wrong with this header whatever the plan.
const char *check_frame(const Frame &frame);
// What a frame takes from the tokens that its receiver granted.
inline uint64_t token_cost(const Frame &frame) { return kTokenOverhead + frame.bytes; }
inline bool spends_tokens(const Frame &frame) {
  if (frame.type == FrameType::kEager) return frame.step == 0;
  return frame.type == FrameType::kMeta || frame.type == FrameType::kData;
}

}  // namespace hvd
