// Copies whose result nobody reads soon.
#pragma once
#include <cstdint>

namespace hvd {

constexpr uint64_t kLineBytes = 64;

// Like memcpy, but past the caches where the machine can: lines that are written whole are not read first, and push nothing out.
void copy_past_caches(void *to, const void *from, uint64_t bytes);

}  // namespace hvd
