// Scope of one call of the engine: holds its lock, and pins the op so that no other thread recycles it.
#pragma once
#include "engine.h"

class hvd_engine::Call {
 public:
  explicit Call(hvd_engine *engine) : lock(engine->mutex_), engine_(engine) { ++engine_->calls_; }
  Call(hvd_engine *engine, hvd_op handle) : Call(engine) {
    op = engine_->closing_ ? nullptr : engine_->ops_.find(handle);
    if (op != nullptr) ++op->pins;
  }
  ~Call() {
    if (!lock.owns_lock()) lock.lock();
    if (op != nullptr && --op->pins == 0 && op->state == hvd::OpState::kGone) engine_->ops_.destroy(op);
    if (--engine_->calls_ == 0 && engine_->closing_) engine_->idle_.notify_all();
  }
  Call(const Call &) = delete;
  Call &operator=(const Call &) = delete;

  void adopt(hvd::Op *fresh) {
    op = fresh;
    ++op->pins;
  }

  Lock lock;
  hvd::Op *op = nullptr;

 private:
  hvd_engine *engine_;
};
