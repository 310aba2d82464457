// The border of the C ABI: no exception crosses it.
#pragma once
#include <new>

#include "hvd.h"

namespace hvd {

template <class Body>
hvd_status guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc &) {
    return HVD_E_MEMORY;
  } catch (...) {
    return HVD_E_INVALID;
  }
}

}  // namespace hvd
