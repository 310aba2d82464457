// The agent's net: connections to the agents of other hosts, and one thread that carries rounds over them.
//
// Everything below "the thread's" belongs to the net's thread alone.  Other threads hand it commands and take events, under one
// small lock; nobody waits for the thread without a limit.  Members' memory is touched only while a round's net hold is taken
// (round.h).  A peer that breaks the rules of the frames is lost; what a peer can make us keep is bounded by its tokens and by
// the rings of the plans.
//
//   net_loop.cc    the thread: signals, sockets, timers        net_peer.cc   tokens, parking, loss, abort
//   net_rounds.cc  rounds that open, end, are dropped          net_frames.cc from frames to what they mean
//   net_eager.cc   small payloads, by one of two ways:         net_ring.cc   large ones: around the ring
//   net_direct.cc  all to all                                  net_doubling.cc  doubling, when there are many hosts
//   net_withdraw.cc rounds that never finish                net_bytes.cc  memory of small payloads
//   net_times.h   how long rounds take
//   net_publish.cc, net_gather.cc  pull rounds: data out, data in
#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "arena.h"
#include "board.h"
#include "net_bell.h"
#include "net_plan.h"
#include "net_times.h"

namespace hvd {

// A local member's data on their way to one host, cut into frames as tokens allow.
struct PullStream {
  struct Part {
    const char *at;
    uint64_t offset, bytes;
    uint32_t step;  // of the DATA frame: 0 meta, 1 data
  };
  NetPlan *plan = nullptr;
  Frame meta;
  bool announced = false;
  std::vector<Part> parts;
  size_t next_part = 0;
};

struct NetPeer {
  uint32_t host = 0;
  std::vector<std::unique_ptr<Lane>> lanes;
  uint64_t tokens = 0;         // what we may spend
  uint64_t unspent = 0;        // what the peer may spend
  uint64_t owed = 0;           // consumed, not given back yet
  uint64_t heard_ns = 0;
  bool lost = false, said_abort = false, said_bye = false;
  bool departed = false;       // after its goodbye, with all that it had to say read
  uint64_t next_wait = 0;
  std::map<uint64_t, OutFrame> waiting;                           // eager frames without tokens, oldest first
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> waiting_for;  // (plan, round) -> key in `waiting`
  std::deque<PullStream> streams;
  uint32_t parked_control = 0;
};

struct ParkedFrame {
  NetPeer *peer;
  Frame frame;
  SharedBytes data;
};

}  // namespace hvd

struct hvd_net final : private hvd::FrameHandler {
  hvd_net(hvd_board *board, hvd::ArenaMappings arenas, hvd_arena *own, const hvd_net_spec &spec);
  ~hvd_net() override;

  hvd_status open();  // descriptors that the thread needs
  hvd_status add_peer(uint32_t host, uint32_t lane, int fd);
  hvd_status start();
  struct PlanHosts {
    const uint32_t *ring;
    uint32_t n;
    const uint32_t *of_members;
    uint32_t n_members;
  };
  hvd_status plan_add(uint64_t offset, const PlanHosts &hosts);
  hvd_status plan_remove(uint64_t plan_id);
  hvd_status plan_limit(uint64_t plan_id, uint64_t limit);
  hvd_status events(hvd_net_event *out, uint32_t capacity, uint32_t *n);
  int event_fd() const { return event_fd_; }
  hvd_status abort(const char *text);
  hvd_status stat(hvd_net_info *out);
  hvd_status peer_stat(uint32_t host, hvd_net_peer_info *out);
  hvd_status time_stat(hvd_net_times *out);

 private:
  using NetPlan = hvd::NetPlan;
  using NetRound = hvd::NetRound;
  using NetPeer = hvd::NetPeer;
  using Lane = hvd::Lane;
  using Frame = hvd::Frame;

  // net_api.cc
  bool post(std::function<void()> command);
  hvd_status ask(std::function<hvd_status()> question);
  bool hosts_are_valid(const hvd::PlanView &view, const PlanHosts &hosts) const;

  // ---- the thread's
  // net_loop.cc
  void run();
  bool step(uint64_t now);
  void sleep(uint64_t now);
  bool nap(uint64_t now, uint64_t busy_ns);
  bool take_commands();
  bool take_signals();
  bool poll_sockets(int timeout_ms);
  bool read_lanes(uint64_t now);
  void hear_last_words(hvd::Lane *lane);
  void mark_dirty(hvd::Lane *lane);
  bool flush_lanes(uint64_t now);
  void tick(uint64_t now);
  void say_goodbye();
  bool drain(uint64_t until_ns, bool outgoing);

  // net_peer.cc
  NetPeer *peer_of(uint32_t host) { return host < peers_.size() ? peers_[host].get() : nullptr; }
  void queue(Lane *lane, hvd::OutFrame frame, hvd::Urgency urgency);
  void control(NetPeer *peer, const Frame &frame);
  void send_eager(NetPeer *peer, hvd::OutFrame frame);
  void send_waiting(NetPeer *peer);
  void give_back(NetPeer *peer, uint64_t cost);
  void give_back_of(NetPeer *peer, const Frame &frame);
  bool dead_told(const hvd::OutFrame &out) const;
  void park(NetPeer *peer, const Frame &frame, hvd::SharedBytes data);
  void unpark(uint64_t plan_id);
  void lose(NetPeer *peer, const std::string &text);
  void bad_frame(Lane *lane, const char *what);
  void tell_abort(const std::string &text, const NetPeer *except);
  void push_event(uint32_t kind, uint32_t host, uint64_t plan_id, uint64_t round, const std::string &text);

  // net_frames.cc
  void begin_frame(Lane *lane) override;
  void end_frame(Lane *lane) override;
  void reduce_payload(Lane *lane, const char *from, uint64_t bytes) override;
  void begin_known(Lane *lane, NetPlan *plan);
  void end_known(Lane *lane, NetPlan *plan);
  const char *deliver(NetPeer *peer, NetPlan *plan, const Frame &frame, hvd::SharedBytes data);
  void written(const hvd::OutFrame &out);
  void got_tokens(Lane *lane);
  void got_abort(NetPeer *peer, const hvd::SharedBytes &text);

  // net_rounds.cc
  void insert_plan(std::unique_ptr<NetPlan> plan);
  hvd_status erase_plan(uint64_t plan_id);
  void look(NetPlan *plan);
  bool skip_closed(NetPlan *plan);
  bool start_round(NetPlan *plan, uint64_t round);
  void find_leader(NetPlan *plan, uint64_t round, NetRound *state);
  void claim_zeros(NetPlan *plan, uint64_t round);
  bool look_at_chunks(NetPlan *plan, uint64_t round, NetRound *state);
  void copy_to_members(NetPlan *plan, uint64_t round, NetRound *state, uint64_t offset, uint64_t bytes);
  void complete(NetPlan *plan, uint64_t round, NetRound *state);
  void end_stage(const NetPlan &plan, NetRound *state, hvd::Stage stage);
  void count_round(const NetPlan &plan);
  void advance(NetPlan *plan, uint64_t round);
  void note_wanted(NetPlan *plan, uint64_t round, NetRound *state);
  void drop_all();
  void drop_plan(NetPlan *plan);
  void forget_round(NetPlan *plan, uint64_t round, NetRound *state);
  void fail_chunk(NetPlan *plan, uint64_t round, uint32_t chunk, hvd_status status);
  hvd::RoundSite site(const NetPlan *plan) const { return {board_->view, *plan->view}; }

  // net_eager.cc
  void eager_started(NetPlan *plan, uint64_t round, NetRound *state);
  void eager_ready(NetPlan *plan, uint64_t round, NetRound *state);
  void eager_go_on(NetPlan *plan, uint64_t round, NetRound *state);
  hvd::OutFrame part_of(NetPlan *plan, uint64_t round, const NetRound &state) const;
  const char *check_eager(NetPeer *peer, NetPlan *plan, const Frame &frame) const;
  const char *got_eager(NetPeer *peer, NetPlan *plan, const Frame &frame, hvd::SharedBytes data);
  const char *got_want(NetPeer *peer, NetPlan *plan, const Frame &frame);
  void note_waited_for(const NetPeer *peer, NetPlan *plan, const Frame &frame);
  const char *got_eager_credit(NetPeer *peer, NetPlan *plan, const Frame &frame);
  void grant(NetPeer *peer, NetPlan *plan, uint64_t round, uint32_t chunk);

  // net_direct.cc
  void direct_send(NetPlan *plan, uint64_t round, const NetRound &state);
  void direct_finish(NetPlan *plan, uint64_t round, NetRound *state);
  void direct_reduce(NetPlan *plan, NetRound *state);

  // net_doubling.cc
  void doubling_go_on(NetPlan *plan, uint64_t round, NetRound *state);
  void doubling_add(NetPlan *plan, NetRound *state, const hvd::Pairing &pairing);

  // net_ring.cc
  void ring_ready(NetPlan *plan, uint64_t round, NetRound *state, uint32_t chunk);
  void scale_alone(NetPlan *plan, NetRound *state, uint32_t chunk);
  void ring_send(NetPlan *plan, uint64_t round, NetRound *state, uint32_t chunk);
  void ring_finish(NetPlan *plan, uint64_t round, NetRound *state, uint32_t chunk);
  const char *begin_ring(Lane *lane, NetPlan *plan);
  void end_ring(Lane *lane, NetPlan *plan);
  void ring_written(NetPlan *plan, uint64_t round, uint32_t chunk);
  const char *got_ring_credit(NetPeer *peer, NetPlan *plan, const Frame &frame);

  // net_publish.cc
  void look_at_pull(NetPlan *plan);
  bool publish(NetPlan *plan, uint64_t round, uint32_t member);
  void send_streams(NetPeer *peer);
  bool send_part(NetPeer *peer, hvd::PullStream *stream, const Frame &frame, const char *data);
  bool send_stream(NetPeer *peer, hvd::PullStream *stream);
  void pull_sent(NetPlan *plan, uint64_t round);
  void finish_pull(NetPlan *plan, uint64_t round);

  // net_gather.cc
  const char *got_meta(NetPeer *peer, NetPlan *plan, const Frame &frame);
  const char *begin_data(NetPlan *plan, const NetPeer *peer, const Frame &frame, char **at);
  void end_data(NetPeer *peer, NetPlan *plan, const Frame &frame);
  void arrive_ready(NetPlan *plan, uint32_t member);
  void arrive_late(NetPlan *plan);
  void free_read(NetPlan *plan);

  // net_withdraw.cc
  void withdraw(NetPlan *plan, uint64_t limit);
  void withdraw_unstarted(NetPlan *plan, uint64_t round);
  void withdraw_round(NetPlan *plan, uint64_t round, std::unique_ptr<NetRound> *state);
  void withdraw_pull(NetPlan *plan, uint64_t round);
  void drop_pieces(NetPlan *plan);
  void drop_waiting(NetPlan *plan);
  void doubt(NetPlan *plan, uint64_t round) { doubts_.emplace_back(plan->view->plan_id, round); }
  void doubt_all();
  void note_departure(NetPeer *peer);
  bool resolve_doubts();
  bool never_finishes(NetPlan *plan, uint64_t round);
  bool misses_departed(const NetPlan &plan, const NetRound &state) const;
  void give_up(NetPlan *plan, uint64_t round);
  const char *got_give_up(const NetPeer *peer, NetPlan *plan, const Frame &frame);

  hvd_board *board_;
  const hvd::ArenaMappings arenas_;  // by local index; the agent's is the last
  hvd_arena *own_;
  const hvd_net_spec spec_;
  std::vector<std::unique_ptr<NetPeer>> peers_;  // by host; null for this one

  std::mutex mutex_;  // guards what follows
  std::condition_variable answered_;
  std::vector<std::function<void()>> commands_;
  std::deque<hvd_net_event> events_;
  std::unordered_set<uint64_t> added_;
  bool started_ = false;

  int event_fd_ = -1, wake_fd_ = -1, epoll_fd_ = -1;
  std::atomic<bool> has_commands_{false}, stop_{false};
  std::thread thread_;
  std::unique_ptr<hvd::BellRelay> relay_;

  // the thread's
  std::vector<Lane *> lanes_;
  std::vector<Lane *> dirty_;
  std::vector<hvd::OutFrame> written_;
  std::unordered_map<uint64_t, std::unique_ptr<NetPlan>> plans_;   // by plan id
  std::unordered_map<uint32_t, std::vector<NetPlan *>> by_signal_;
  std::unordered_map<uint64_t, std::vector<hvd::ParkedFrame>> parked_;  // by a plan id that we do not know yet
  std::unordered_set<uint64_t> removed_;
  std::deque<uint64_t> removed_order_;
  bool dead_ = false;       // all rounds are dropped, for good
  bool must_drop_ = false;
  bool told_abort_ = false;
  bool closed_ = false;         // the board is: nobody arrives any more
  bool any_departed_ = false;
  std::vector<std::pair<uint64_t, uint64_t>> doubts_;  // (plan, round): may never finish, to be looked at
  std::vector<std::pair<Lane *, hvd::OutFrame>> last_words_;  // go out when what rounds had to say is dropped
  uint64_t next_tick_ns_ = 0;
  uint64_t flush_ns_ = 0;  // when the first of `dirty_` is to be flushed
  uint32_t eager_in_flight_ = 0;  // direct and doubling rounds whose own part is ready
  hvd_net_info info_{};
  hvd_net_times times_{};
};
