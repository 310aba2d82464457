// The C face of the net, and what other threads do: they check arguments, hand over commands, take events.
#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "guard.h"
#include "net.h"

using hvd::guarded;

namespace {

static_assert(hvd::kMaxEagerBytes < hvd::kSmallestWindowed, "what is exchanged in one piece has no windows");

constexpr uint32_t kMaxHosts = 1u << 14, kMaxLanes = 16;
constexpr uint64_t kLeastEager = 512 << 10, kMostEager = 1ull << 30;
constexpr auto kAnswerWithin = std::chrono::milliseconds(100);

bool spec_is_valid(const hvd_net_spec &spec) {
  bool hosts = spec.n_hosts != 0 && spec.n_hosts <= kMaxHosts && spec.my_host < spec.n_hosts;
  bool flow = spec.lanes != 0 && spec.lanes <= kMaxLanes && spec.eager_bytes >= kLeastEager && spec.eager_bytes <= kMostEager;
  bool known = spec.algorithm <= HVD_NET_RING;
  return hosts && flow && known && spec.ping_ms != 0 && spec.ping_ms <= 60000 && spec.silent_ms > spec.ping_ms;
}

void prepare_socket(int fd) {
  int on = 1;
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // fails on other sockets, which have no delay
}

bool is_stream_socket(int fd) {
  int kind = 0;
  socklen_t size = sizeof kind;
  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &size) == 0 && kind == SOCK_STREAM;
}

}  // namespace

hvd_net::hvd_net(hvd_board *board, hvd::ArenaMappings arenas, hvd_arena *own, const hvd_net_spec &spec)
    : board_(board), arenas_(std::move(arenas)), own_(own), spec_(spec), peers_(spec.n_hosts) {
  own_->free_lingering();
}

hvd_status hvd_net::open() {
  event_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (event_fd_ < 0 || wake_fd_ < 0 || epoll_fd_ < 0) return HVD_E_MEMORY;
  epoll_event wake{};
  wake.events = EPOLLIN;
  return epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, wake_fd_, &wake) == 0 ? HVD_OK : HVD_E_MEMORY;
}

hvd_net::~hvd_net() {
  stop_.store(true, std::memory_order_seq_cst);
  if (thread_.joinable()) {
    hvd::write_event(wake_fd_);
    thread_.join();
  }
  relay_.reset();
  for (int fd : {event_fd_, wake_fd_, epoll_fd_})
    if (fd >= 0) ::close(fd);
}

hvd_status hvd_net::add_peer(uint32_t host, uint32_t lane, int fd) {
  std::lock_guard lock(mutex_);
  if (started_ || host >= spec_.n_hosts || host == spec_.my_host || lane >= spec_.lanes) return HVD_E_INVALID;
  if (!is_stream_socket(fd)) return HVD_E_INVALID;
  auto &peer = peers_[host];
  if (peer == nullptr) {
    peer = std::make_unique<hvd::NetPeer>();
    peer->host = host;
    peer->tokens = peer->unspent = spec_.eager_bytes;
    peer->lanes.resize(spec_.lanes);
  }
  if (peer->lanes[lane] != nullptr) return HVD_E_INVALID;
  prepare_socket(fd);
  peer->lanes[lane] = std::make_unique<hvd::Lane>(fd, peer.get(), lane);
  return HVD_OK;
}

hvd_status hvd_net::start() {
  std::lock_guard lock(mutex_);
  if (started_) return HVD_E_INVALID;
  for (auto &peer : peers_)
    for (uint32_t i = 0; peer != nullptr && i < spec_.lanes; ++i)
      if (peer->lanes[i] == nullptr) return HVD_E_INVALID;
  for (auto &peer : peers_)
    for (uint32_t i = 0; peer != nullptr && i < spec_.lanes; ++i) {
      Lane *lane = peer->lanes[i].get();
      epoll_event events{};
      events.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
      events.data.ptr = lane;
      if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, lane->fd, &events) != 0) return HVD_E_MEMORY;
      lanes_.push_back(lane);
    }
  started_ = true;
  relay_ = std::make_unique<hvd::BellRelay>(&board_->view.header->net.bell, wake_fd_);
  thread_ = std::thread([this] { run(); });
  return HVD_OK;
}

bool hvd_net::post(std::function<void()> command) {
  std::lock_guard lock(mutex_);
  commands_.push_back(std::move(command));
  has_commands_.store(true, std::memory_order_seq_cst);
  hvd::write_event(wake_fd_);
  return true;
}

// Runs a question in the net's thread; HVD_PENDING when it does not answer soon.
hvd_status hvd_net::ask(std::function<hvd_status()> question) {
  struct Answer {
    bool given = false;
    hvd_status status = HVD_PENDING;
  };
  auto answer = std::make_shared<Answer>();
  post([this, answer, question] {
    hvd_status status = question();
    std::lock_guard lock(mutex_);
    answer->status = status;
    answer->given = true;
    answered_.notify_all();
  });
  std::unique_lock lock(mutex_);
  if (!started_) {  // there is no thread yet: this one stands in
    lock.unlock();
    take_commands();
    return answer->status;
  }
  answered_.wait_for(lock, kAnswerWithin, [&] { return answer->given; });
  return answer->status;
}

bool hvd_net::hosts_are_valid(const hvd::PlanView &view, const PlanHosts &hosts) const {
  if (hosts.ring == nullptr || hosts.n == 0 || hosts.n > spec_.n_hosts) return false;
  std::vector<bool> seen(spec_.n_hosts);
  for (uint32_t i = 0; i < hosts.n; ++i) {
    uint32_t host = hosts.ring[i];
    if (host >= spec_.n_hosts || seen[host]) return false;
    if (host != spec_.my_host && peers_[host] == nullptr) return false;
    seen[host] = true;
  }
  if (!seen[spec_.my_host]) return false;
  if (!view.is_pull()) return view.bytes == 0 || view.op != HVD_ADASUM;
  if (hosts.of_members == nullptr || hosts.n_members != view.n_members) return false;
  for (uint32_t m = 0; m < view.n_members; ++m) {
    uint32_t host = hosts.of_members[m];
    if (host >= spec_.n_hosts || !seen[host] || (host == spec_.my_host) != view.is_here[m]) return false;
  }
  return true;
}

hvd_status hvd_net::plan_add(uint64_t offset, const PlanHosts &hosts) {
  auto view = board_->plan(offset);
  if (view == nullptr || !view->is_remote() || !hosts_are_valid(*view, hosts)) return HVD_E_INVALID;
  auto plan = std::make_shared<std::unique_ptr<NetPlan>>(std::make_unique<NetPlan>());
  NetPlan &made = **plan;
  made.hosts.assign(hosts.ring, hosts.ring + hosts.n);
  made.me = made.place_of(spec_.my_host);
  if (view->is_pull()) made.member_hosts.assign(hosts.of_members, hosts.of_members + hosts.n_members);
  made.slots.resize(view->depth);
  for (uint32_t i = 0; i < view->depth; ++i) made.slots[i].round = i;
  made.published.resize(view->n_members);
  made.view = std::move(view);
  made.choose(spec_.algorithm);
  {
    std::lock_guard lock(mutex_);
    if (!added_.insert(made.view->plan_id).second) return HVD_E_INVALID;
  }
  post([this, plan] { insert_plan(std::move(*plan)); });
  return HVD_OK;
}

hvd_status hvd_net::plan_remove(uint64_t plan_id) {
  {
    std::lock_guard lock(mutex_);
    if (added_.count(plan_id) == 0) return HVD_E_INVALID;
  }
  hvd_status status = ask([this, plan_id] { return erase_plan(plan_id); });
  std::lock_guard lock(mutex_);
  if (status == HVD_OK) added_.erase(plan_id);
  return status;
}

hvd_status hvd_net::plan_limit(uint64_t plan_id, uint64_t limit) {
  {
    std::lock_guard lock(mutex_);
    if (added_.count(plan_id) == 0) return HVD_E_INVALID;
  }
  return ask([this, plan_id, limit] {
    auto found = plans_.find(plan_id);
    if (found != plans_.end() && !dead_) withdraw(found->second.get(), limit);
    return HVD_OK;
  });
}

hvd_status hvd_net::events(hvd_net_event *out, uint32_t capacity, uint32_t *n) {
  std::lock_guard lock(mutex_);
  *n = static_cast<uint32_t>(std::min<size_t>(capacity, events_.size()));
  std::copy_n(events_.begin(), *n, out);
  events_.erase(events_.begin(), events_.begin() + *n);
  if (events_.empty()) hvd::clear_event(event_fd_);
  return HVD_OK;
}

hvd_status hvd_net::abort(const char *text) {
  std::string copy = text == nullptr ? "" : text;
  post([this, copy] {
    tell_abort(copy, nullptr);
    must_drop_ = true;
  });
  return HVD_OK;
}

hvd_status hvd_net::stat(hvd_net_info *out) {
  auto copy = std::make_shared<hvd_net_info>();
  hvd_status status = ask([this, copy] {
    *copy = info_;
    for (const Lane *lane : lanes_) {
      copy->bytes_sent += lane->bytes_out;
      copy->bytes_received += lane->bytes_in;
      copy->frames_sent += lane->frames_out;
      copy->frames_received += lane->frames_in;
      copy->writes += lane->writes;
      copy->reads += lane->reads;
    }
    for (const auto &peer : peers_)
      if (peer != nullptr) copy->waiting_frames += peer->waiting.size() + peer->streams.size();
    return HVD_OK;
  });
  if (status == HVD_OK) *out = *copy;
  return status;
}

hvd_status hvd_net::peer_stat(uint32_t host, hvd_net_peer_info *out) {
  if (host >= spec_.n_hosts || peers_[host] == nullptr) return HVD_E_INVALID;
  auto copy = std::make_shared<hvd_net_peer_info>();
  hvd_status status = ask([this, host, copy] {
    const hvd::NetPeer &peer = *peers_[host];
    *copy = {0, 0, peer.tokens, peer.owed, (hvd::now_ns() - peer.heard_ns) / 1000000, 0, peer.lost ? 1u : 0u};
    for (const auto &lane : peer.lanes) {
      copy->bytes_sent += lane->bytes_out;
      copy->bytes_received += lane->bytes_in;
      copy->retransmits += lane->retransmits();
    }
    return HVD_OK;
  });
  if (status == HVD_OK) *out = *copy;
  return status;
}

hvd_status hvd_net::time_stat(hvd_net_times *out) {
  auto copy = std::make_shared<hvd_net_times>();
  hvd_status status = ask([this, copy] { return *copy = times_, HVD_OK; });
  if (status == HVD_OK) *out = *copy;
  return status;
}

hvd_status hvd_net_create(hvd_board *board, const int *arena_fds, uint32_t n, hvd_arena *own, const hvd_net_spec *spec,
                          hvd_net **out) {
  if (board == nullptr || arena_fds == nullptr || own == nullptr || spec == nullptr || out == nullptr) return HVD_E_INVALID;
  if (n != board->view.local_size || !spec_is_valid(*spec)) return HVD_E_INVALID;
  return guarded([&] {
    hvd::ArenaMappings arenas;
    if (!board->map_arenas(arena_fds, n, &arenas)) return HVD_E_INVALID;
    arenas.push_back(own->mapping);
    auto net = std::make_unique<hvd_net>(board, std::move(arenas), own, *spec);
    hvd_status status = net->open();
    if (status == HVD_OK) *out = net.release();
    return status;
  });
}

hvd_status hvd_net_add_peer(hvd_net *net, uint32_t host, uint32_t lane, int fd) {
  hvd_status status = net == nullptr ? HVD_E_INVALID : guarded([&] { return net->add_peer(host, lane, fd); });
  if (status != HVD_OK && fd >= 0) close(fd);
  return status;
}

hvd_status hvd_net_start(hvd_net *net) {
  if (net == nullptr) return HVD_E_INVALID;
  return guarded([&] { return net->start(); });
}

hvd_status hvd_net_plan_add(hvd_net *net, uint64_t offset, const uint32_t *ring_hosts, uint32_t n_hosts,
                            const uint32_t *member_hosts, uint32_t n_members) {
  if (net == nullptr) return HVD_E_INVALID;
  return guarded([&] { return net->plan_add(offset, {ring_hosts, n_hosts, member_hosts, n_members}); });
}

hvd_status hvd_net_plan_remove(hvd_net *net, uint64_t plan_id) {
  if (net == nullptr) return HVD_E_INVALID;
  return guarded([&] { return net->plan_remove(plan_id); });
}

hvd_status hvd_net_plan_limit(hvd_net *net, uint64_t plan_id, uint64_t limit) {
  if (net == nullptr) return HVD_E_INVALID;
  return guarded([&] { return net->plan_limit(plan_id, limit); });
}

hvd_status hvd_net_events(hvd_net *net, hvd_net_event *out, uint32_t capacity, uint32_t *n) {
  if (net == nullptr || n == nullptr || (out == nullptr && capacity != 0)) return HVD_E_INVALID;
  return guarded([&] { return net->events(out, capacity, n); });
}

int hvd_net_event_fd(hvd_net *net) { return net == nullptr ? -1 : net->event_fd(); }

hvd_status hvd_net_abort(hvd_net *net, const char *text) {
  if (net == nullptr) return HVD_E_INVALID;
  return guarded([&] { return net->abort(text); });
}

hvd_status hvd_net_stat(hvd_net *net, hvd_net_info *out) {
  if (net == nullptr || out == nullptr) return HVD_E_INVALID;
  return guarded([&] { return net->stat(out); });
}

hvd_status hvd_net_peer_stat(hvd_net *net, uint32_t host, hvd_net_peer_info *out) {
  if (net == nullptr || out == nullptr) return HVD_E_INVALID;
  return guarded([&] { return net->peer_stat(host, out); });
}

hvd_status hvd_net_time_stat(hvd_net *net, hvd_net_times *out) {
  if (net == nullptr || out == nullptr) return HVD_E_INVALID;
  return guarded([&] { return net->time_stat(out); });
}

void hvd_net_close(hvd_net *net) { delete net; }
