/* hvd.h - C ABI of the hvd engine.
 *
 * The engine moves and reduces bytes in memory that the ranks and the agent of one host share, and reports what
 * happened.  It holds no policy: which collective runs, who belongs to it and when it is given up is decided by its
 * callers.  Nothing here depends on Python, torch or any other framework.
 *
 * Words (one per concept):
 *   board   shared memory made by the agent, mapped by all local ranks: plans, rounds, one slot per local rank.
 *   arena   shared memory made by one rank for its tensor data, mapped by all local ranks.
 *   plan    a negotiated collective; a block on the board.  Plans hold no addresses.
 *   round   the n-th execution of a plan; a ring of `depth` entries in the plan's block.
 *   op      one submitted collective of one rank: not bound yet, bound to (plan, round), or finished.
 *   net     the agent's connections to the agents of other hosts, and the thread that carries rounds over them.
 *
 * Errors: functions return hvd_status (negative = failure).  No function throws, allocates without bound, or blocks
 * without a time limit.  All functions are thread-safe unless a comment says otherwise.
 */
#ifndef HVD_H
#define HVD_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#define HVD_API __attribute__((visibility("default")))

#define HVD_ABI_VERSION 5
HVD_API uint32_t hvd_abi_version(void);

typedef enum {
  HVD_OK = 0,
  HVD_PENDING = 1,   /* not finished within the time limit: call again */
  HVD_MARKED = 2,    /* the round is at or above the plan's limit: the op is parked, ask the control plane */
  HVD_E_INVALID = -1,  /* argument out of range: pointer, length, index, state */
  HVD_E_MEMORY = -2,   /* arena or board exhausted, mmap or memfd failed (errno kept) */
  HVD_E_CLOSED = -3,   /* the epoch was closed: a rank called shutdown */
  HVD_E_FAILED = -4,   /* the epoch failed: hvd_board_reason() has the text */
  HVD_E_CANCELLED = -5, /* the op was failed by hvd_op_fail(); the caller has the text */
  HVD_E_SPENT = -6     /* the op's input lay in the arena, and a round that was taken back has overwritten it */
} hvd_status;

typedef enum {
  HVD_UINT8 = 0, HVD_INT8 = 1, HVD_UINT16 = 2, HVD_INT16 = 3, HVD_INT32 = 4, HVD_INT64 = 5, HVD_FLOAT16 = 6,
  HVD_FLOAT32 = 7, HVD_FLOAT64 = 8, HVD_BOOL = 9, HVD_BFLOAT16 = 10
} hvd_dtype;

/* Average is Sum with a post-scale that the caller multiplied by 1/size. */
typedef enum { HVD_SUM = 1, HVD_ADASUM = 2, HVD_MIN = 3, HVD_MAX = 4, HVD_PRODUCT = 5 } hvd_reduce_op;

/* COOPERATIVE: all members' buffers are reduced in place, chunks may be claimed by anyone (allreduce; with
 * bytes == 0 a barrier).  PULL: every member publishes bytes and small integers (meta); once all have arrived each
 * member copies or reduces what it needs into its own memory (allgather, broadcast, alltoall, reducescatter). */
typedef enum { HVD_COOPERATIVE = 0, HVD_PULL = 1 } hvd_plan_kind;

/* ---- reduction kernels (also the floor that benchmarks measure) ---------------------------------------------- */

/* out[j][i] = round(post * reduce_m(round(pre * in[m][i]))) for i < count, for each non-null out[j], j < n.
 * in[m] == NULL stands for zeros.  out[j] may equal in[j].  Buffers are at least element-aligned.
 * Rounding: fp32 with factors cast to fp32; fp64 in fp64; fp16 and bf16 are combined and scaled in fp32 and rounded once,
 * to nearest even.  bool: Sum and Max are OR, Product and Min are AND; it is never scaled, True stays True.
 * Integers: a factor of exactly 1 changes nothing.  With any other, each input times pre, and what they were combined to
 * times post, is computed in fp64 (an int64 beyond 2^53 is rounded to fp64 first), truncated toward zero, and clamped to the
 * nearest end of the dtype's range when it does not fit; NaN becomes 0.  Each input is truncated by itself: 1 and 1 with a pre
 * of 0.5 add up to 0.
 * Sums and products wrap in the dtype itself, before post: an average is right only if the sum fits.
 * Min and Max propagate NaN whatever the operand order.  Members are combined in order 0..n-1, so all outputs have the same
 * bits.
 * HVD_ADASUM (float dtypes): arXiv 2006.02924, distance-doubling pairs, dot products in fp64.  Where n is no power of
 * two, input p + i is first combined into input i, p being the largest power of two below n.  `count` must cover the whole
 * tensor. */
HVD_API hvd_status hvd_reduce(hvd_dtype dtype, hvd_reduce_op op, double pre, double post, const void *const *in,
                              void *const *out, uint32_t n, uint64_t count);
HVD_API uint32_t hvd_dtype_bytes(hvd_dtype dtype);
HVD_API const char *hvd_kernel_name(void); /* "avx512", "avx2" or "baseline": chosen once, HVD_SIMD overrides */
/* Like memcpy, but past the caches where the machine can: for large results that are not read soon. */
HVD_API void hvd_copy_past_caches(void *to, const void *from, uint64_t bytes);

/* ---- board: agent side ---------------------------------------------------------------------------------------- */

typedef struct hvd_board hvd_board;

typedef struct {
  uint64_t plan_id;      /* unique in the epoch */
  uint32_t kind;         /* hvd_plan_kind */
  uint32_t dtype, op;    /* used by cooperative rounds and by hvd_op_pull_reduce */
  double prescale, postscale;
  uint64_t bytes;        /* cooperative: payload of every member; a multiple of the dtype's size */
  uint32_t depth;        /* rounds that can be open at once: 2 for named plans, more for unnamed ones */
  uint32_t n_members;    /* cooperative: local members.  pull: all members of the set.  In set-rank order */
  const uint32_t *members; /* their local indices; pull and remote: local_size stands for a member on another host */
  uint32_t flags;        /* HVD_PLAN_REMOTE or 0 */
} hvd_plan_spec;

/* Members on other hosts take part: rounds of this plan need a net that knows it (hvd_net_plan_add).  A member that lives
 * on another host has the agent's index, local_size of the board, and its data lie in the agent's arena. */
#define HVD_PLAN_REMOTE 1u

/* Creates a sealed memfd-backed board for `local_size` ranks; *fd receives a close-on-exec descriptor that the caller
 * owns.  spin_ns: how long a waiter spins before it sleeps. */
HVD_API hvd_status hvd_board_create(uint32_t local_size, uint64_t spin_ns, hvd_board **out, int *fd);
/* Unmaps.  No thread may be inside another call on this board. */
HVD_API void hvd_board_close(hvd_board *board);
HVD_API hvd_status hvd_board_plan_add(hvd_board *board, const hvd_plan_spec *spec, uint64_t *offset);
/* Returns HVD_PENDING while a claim or a pull still refers to the block. */
HVD_API hvd_status hvd_board_plan_remove(hvd_board *board, uint64_t offset);
/* Mark: rounds >= limit do not run here.  Sequentially consistent with hvd_op_bind: the submitter arrives, then reads
 * the limit; the agent stores the limit, then reads the arrivals. */
HVD_API hvd_status hvd_board_plan_limit(hvd_board *board, uint64_t offset, uint64_t limit);
/* Rounds in which each member has arrived so far, by member index (n_members values). */
HVD_API hvd_status hvd_board_plan_arrivals(hvd_board *board, uint64_t offset, uint64_t *arrivals);
/* Arrives for member `local_index` in every round of this plan that has at least one arrival, or data from another host,
 * and misses that member; *rounds receives how many.  Its data are zeros.  With `absent` there are none: reductions leave
 * the member out, and in a pull plan, which takes no other kind, it publishes nothing. */
HVD_API hvd_status hvd_board_plan_arrive_for(hvd_board *board, uint64_t offset, uint32_t local_index, int absent,
                                             uint64_t *rounds);
/* While set, every arrival also rings the agent's bell. */
HVD_API hvd_status hvd_board_watch_arrivals(hvd_board *board, int on);
/* Sleeps until the agent's bell rings or the time is over (HVD_PENDING). */
HVD_API hvd_status hvd_board_wait_bell(hvd_board *board, uint32_t timeout_ms);
HVD_API void hvd_board_ring_agent(hvd_board *board);
/* Ends the epoch: HVD_E_CLOSED lets rounds finish in which all members have arrived, HVD_E_FAILED does not.
 * A completed round beats a failed board.  The first reason is kept (UTF-8, cut at 4,000 bytes). Wakes every sleeper. */
HVD_API hvd_status hvd_board_fail(hvd_board *board, hvd_status code, const char *reason);
/* The process of this local rank is gone: its claims count as ended. */
HVD_API hvd_status hvd_board_rank_dead(hvd_board *board, uint32_t local_index);

typedef struct {
  uint64_t plan_id, offset, round;
  uint64_t age_ns;         /* since the first arrival */
  uint32_t n_members, n_arrived;
  uint32_t phase;          /* 0 members missing, 1 being reduced (a claim is held or chunks are left), 2 not read by all,
                              3 reduced here, and on its way between hosts */
} hvd_round_info;
/* Rounds with at least one arrival that are not complete and read by all, oldest first, at most `capacity`;
 * *n receives how many there are in all. */
HVD_API hvd_status hvd_board_scan(hvd_board *board, hvd_round_info *out, uint32_t capacity, uint32_t *n);
/* For one round: arrived[i] = 1 if member i has arrived, else 0; holder[i] = 1 if member i holds a claim in it. */
HVD_API hvd_status hvd_board_round_members(hvd_board *board, uint64_t offset, uint64_t round, uint8_t *arrived, uint8_t *holder);

typedef struct {
  uint64_t submits;      /* ops submitted by this rank in this epoch, by all threads */
  uint32_t blocked;      /* threads inside hvd_op_wait */
  uint64_t blocked_tag;  /* caller's tag of the op that the longest-waiting thread waits for */
  uint64_t blocked_ns;   /* since when, CLOCK_MONOTONIC */
  uint32_t claims;       /* claims held now */
} hvd_rank_info;
HVD_API hvd_status hvd_board_rank_info(hvd_board *board, uint32_t local_index, hvd_rank_info *out);
/* What took less than 2^b times 1024 ns, but not less than half of that, is counted in bucket b; the last one takes the rest. */
#define HVD_BUCKETS 24
typedef struct {
  /* By stage: from the first to the last arrival; from there until the last chunk was reduced. */
  uint64_t counts[2][HVD_BUCKETS];
  uint64_t sum_ns[2];
} hvd_board_times;
/* How long the stages of rounds took whose members are all on this host: of each plan's first round and every 16th after it. */
HVD_API hvd_status hvd_board_time_stat(hvd_board *board, hvd_board_times *out);
/* Reduces what is open, as any rank would, until the time is over; for the agent's helper threads. */
HVD_API hvd_status hvd_board_help(hvd_board *board, const int *arena_fds, uint32_t n, uint32_t timeout_ms);

/* ---- arena: one per process, kept over epochs -------------------------------------------------------------------- */

typedef struct hvd_arena hvd_arena;
/* Sparse: `bytes` of address space, memory only where touched.  Sealed against shrinking and growing. */
HVD_API hvd_status hvd_arena_create(uint64_t bytes, hvd_arena **out);
HVD_API int hvd_arena_fd(const hvd_arena *arena);
HVD_API void *hvd_arena_base(const hvd_arena *arena);
/* 256-byte aligned; NULL when exhausted.  bytes == 0 is allowed. */
HVD_API void *hvd_arena_alloc(hvd_arena *arena, uint64_t bytes);
HVD_API hvd_status hvd_arena_free(hvd_arena *arena, void *pointer);
typedef struct { uint64_t used_bytes, free_touched_bytes, resident_bytes; } hvd_arena_info;
HVD_API hvd_status hvd_arena_stat(hvd_arena *arena, hvd_arena_info *out);
/* Gives free memory back to the system (punches holes) until at most `keep_bytes` of free memory stay touched. */
HVD_API hvd_status hvd_arena_trim(hvd_arena *arena, uint64_t keep_bytes);
HVD_API void hvd_arena_close(hvd_arena *arena); /* only when no tensor lives in it any more */

/* ---- net: rounds between hosts, in the agent's process --------------------------------------------------------------- */

/* One net per agent and epoch, with one thread that carries rounds of plans with HVD_PLAN_REMOTE, and a helper thread that sleeps
 * on the board's bell.  It reports what it sees as events and never changes the state of the board: when the board has failed
 * or a peer is lost it drops all rounds, and the agent ends the epoch. */
typedef struct hvd_net hvd_net;
/* How cooperative rounds travel: every host sends all others its part; hosts exchange sums of twice as many parts each time; pieces
 * go around a ring.  Hosts that share a plan choose the same way by its bytes and their number. */
typedef enum { HVD_NET_BY_SIZE = 0, HVD_NET_DIRECT = 1, HVD_NET_DOUBLING = 2, HVD_NET_RING = 3 } hvd_net_algorithm;
typedef struct {
  uint32_t n_hosts, my_host;
  uint32_t lanes;        /* connections to each peer, at most 16 */
  uint64_t eager_bytes;  /* what each peer may send before its receiver is ready; at least 512 KiB, the same on all hosts */
  uint32_t ping_ms;      /* a peer is greeted so often */
  uint32_t silent_ms;    /* and is lost after so long without a byte from it */
  uint32_t algorithm;    /* for tests and measurements, the same on all hosts: what rounds take that can, not HVD_NET_BY_SIZE */
} hvd_net_spec;
/* Board and arena must outlive the net.  arena_fds: of the n local ranks; they may be closed afterwards. */
HVD_API hvd_status hvd_net_create(hvd_board *board, const int *arena_fds, uint32_t n, hvd_arena *own, const hvd_net_spec *spec,
                                  hvd_net **out);
/* Takes the descriptor of a connected, authenticated stream socket (also when it fails).  Each lane of each peer that shares
 * a plan with this host must be added before the start. */
HVD_API hvd_status hvd_net_add_peer(hvd_net *net, uint32_t host, uint32_t lane, int fd);
HVD_API hvd_status hvd_net_start(hvd_net *net);
/* Before any local rank is told of the plan at `offset`.  ring_hosts: the hosts that have members, in ring order, the same everywhere.
 * member_hosts: for pull plans, the host of each member.  HVD_E_INVALID for Adasum: it does not travel. */
HVD_API hvd_status hvd_net_plan_add(hvd_net *net, uint64_t offset, const uint32_t *ring_hosts, uint32_t n_hosts,
                                    const uint32_t *member_hosts, uint32_t n_members);
/* Before hvd_board_plan_remove.  HVD_PENDING while the net works on a round of it, or members here may still read what it got. */
HVD_API hvd_status hvd_net_plan_remove(hvd_net *net, uint64_t plan_id);

/* After hvd_board_plan_limit: rounds from `limit` on never finish, for some member somewhere does not arrive in them.  Those that
 * are open here are withdrawn, so that their ops can be unbound; what their buffers hold then is undefined.  A limit may be lowered,
 * not raised.  HVD_PENDING when the thread is too busy to answer: it does it soon. */
HVD_API hvd_status hvd_net_plan_limit(hvd_net *net, uint64_t plan_id, uint64_t limit);

typedef enum {
  HVD_NET_PEER_LOST = 1, /* host; text: reset, closed, silent for so long, bad frame.  All rounds are dropped */
  HVD_NET_ABORT = 2,     /* host said so, or this net has no memory (host == my_host); text.  All rounds are dropped */
  HVD_NET_WANTED = 3     /* plan_id, round: another host has data for it, no rank here has arrived in it, and
                            hvd_board_watch_arrivals is on: a rank that has joined may have to be arrived for */
} hvd_net_event_kind;
typedef struct { uint32_t kind, host; uint64_t plan_id, round; char text[200]; } hvd_net_event;
/* The oldest events, at most `capacity`; *n receives how many were taken. */
HVD_API hvd_status hvd_net_events(hvd_net *net, hvd_net_event *out, uint32_t capacity, uint32_t *n);
/* Readable while events wait; stays the net's. */
HVD_API int hvd_net_event_fd(hvd_net *net);
/* Tells all peers and drops all rounds, for good; used with hvd_board_fail. */
HVD_API hvd_status hvd_net_abort(hvd_net *net, const char *text);

typedef struct {
  uint64_t rounds_direct, rounds_doubling, rounds_ring, rounds_pull; /* finished */
  uint64_t bytes_sent, bytes_received, frames_sent, frames_received;
  uint64_t writes, reads;            /* system calls on sockets */
  uint64_t sleeps;                   /* of the thread */
  uint64_t parked_bytes;             /* of frames for plans or rounds that are not known here yet */
  uint64_t waiting_frames;           /* frames and streams that wait for tokens */
} hvd_net_info;
/* HVD_PENDING when the thread is too busy to answer. */
HVD_API hvd_status hvd_net_stat(hvd_net *net, hvd_net_info *out);
typedef struct {
  /* By algorithm (direct, doubling, ring, pull), stage (wait for local arrivals, local reduction, network, copies to local
   * members), bucket. */
  uint64_t counts[4][4][HVD_BUCKETS];
  uint64_t sum_ns[4][4];
} hvd_net_times;
/* How long the stages of finished rounds took.  HVD_PENDING when the thread is too busy to answer. */
HVD_API hvd_status hvd_net_time_stat(hvd_net *net, hvd_net_times *out);
typedef struct {
  uint64_t bytes_sent, bytes_received, tokens, owed, silent_ms;
  uint64_t retransmits;  /* segments that its connections have sent again */
  uint32_t lost;
} hvd_net_peer_info;
HVD_API hvd_status hvd_net_peer_stat(hvd_net *net, uint32_t host, hvd_net_peer_info *out);
/* Says goodbye, so that peers do not take the end of the connections for a loss, stops the threads and closes the sockets; takes
 * at most about a second.  Data of pull rounds stay in the agent's arena until the next hvd_net_create on it. */
HVD_API void hvd_net_close(hvd_net *net);

/* ---- engine: a rank's view of one epoch ---------------------------------------------------------------------------- */

typedef struct hvd_engine hvd_engine;
/* Maps the board and the arenas of all local ranks (arena_fds[local_index] is ignored); n is local_size, or local_size + 1
 * when the last one is the agent's arena, where data from other hosts lie.  Descriptors stay the caller's and may be closed
 * afterwards.  A forked child has neither the board nor the peers' arenas (MADV_DONTFORK): it makes no call on this engine,
 * not even hvd_engine_close, and may exit as it likes. */
HVD_API hvd_status hvd_engine_open(int board_fd, hvd_arena *own, uint32_t local_index, const int *arena_fds,
                                   uint32_t n, hvd_engine **out);
/* Fails what is open with HVD_E_CANCELLED, waits for own threads to leave, unmaps.  Staging memory is given back, but data of
 * pull rounds that a peer may still read stays where it is until the next hvd_engine_open on this arena. */
HVD_API void hvd_engine_close(hvd_engine *engine);
/* The process of the agent is gone: what it and its net held counts as ended, and the epoch has failed. */
HVD_API hvd_status hvd_engine_agent_dead(hvd_engine *engine);
/* Text given to hvd_board_fail, "" if none; returns its length. */
HVD_API uint32_t hvd_engine_reason(hvd_engine *engine, char *out, uint32_t capacity);
HVD_API hvd_status hvd_engine_state(hvd_engine *engine); /* HVD_OK, HVD_E_CLOSED or HVD_E_FAILED */

typedef struct { const void *in; void *out; uint64_t bytes; } hvd_segment;

/* The submitting thread waits at once: large plain buffers are staged through a small window, in and `out` stay valid until then.
 * Should it leave its wait, the window still moves while any thread of this process waits, polls or submits.  Members here that
 * share a round between hosts take results from the first one's window, whose op ends when they have. */
#define HVD_OP_BLOCKING 1u

typedef int64_t hvd_op; /* > 0; an index with a generation, so a stale handle is HVD_E_INVALID */

/* A cooperative op.  Segments are laid out one behind the other, each start aligned to 64 bytes (a single segment has no
 * padding); the plan's `bytes` is that total.  A payload that lies so in this rank's own arena with in == out for each segment,
 * is reduced where it is; other payloads are staged: whole, copied in before this returns (unless HVD_OP_BLOCKING), and
 * copied out by the hvd_op_wait/hvd_op_poll that reports HVD_OK.  `out` must stay valid until then, and so must `in`, as it is:
 * an op that has left a round which was open here is copied in again when it is bound again.
 * `tag` is shown in hvd_rank_info. The op is not bound. */
HVD_API hvd_status hvd_op_reduce(hvd_engine *engine, const hvd_segment *segments, uint32_t n, uint32_t flags, uint64_t tag, hvd_op *out);
/* A pull op: data (segments' `in`, concatenated without padding) and meta integers, both copied before this returns: peers may
 * read them long after the caller went on, so that even a buffer in the own arena is copied.
 * reads[i] is the part of the data that member i of the plan may read (all of it when n_reads is 0): other parts are not sent
 * to its host.  n_reads must be 0 or the number of members of the plan that the op is bound to. */
typedef struct { uint64_t offset, bytes; } hvd_span;
HVD_API hvd_status hvd_op_pull(hvd_engine *engine, const hvd_segment *segments, uint32_t n, const int64_t *meta, uint32_t n_meta,
                               const hvd_span *reads, uint32_t n_reads, uint64_t tag, hvd_op *out);
/* Binds to the next round of the plan at `offset` and arrives.  Order of binds = order of rounds.  HVD_MARKED: round >= limit, op
 * parked (it may or may not have been seen as arrived); bind it again, to this or another plan, or fail it.
 * When the ring of rounds is full the op arrives later, by any later call of this process. *round receives the round. */
HVD_API hvd_status hvd_op_bind(hvd_engine *engine, hvd_op op, uint64_t offset, uint64_t *round);
/* Takes a bound op that cannot finish (its round is at or above the limit and never opened) off its round: unbound again.
 * HVD_E_INVALID when the round has opened: it will finish or fail by itself, the op stays.  A round between hosts that is open here
 * only is withdrawn by the net (hvd_net_plan_limit); this waits for that, at most two seconds.
 * HVD_E_SPENT: unbound, but its input lay in the arena and such a round has overwritten it.  It can only be failed: hvd_op_bind
 * answers the same. */
HVD_API hvd_status hvd_op_unbind(hvd_engine *engine, hvd_op op);
/* Fast path: hvd_op_reduce with one segment + hvd_op_bind in one call. HVD_MARKED as there (then *out is a parked op). */
HVD_API hvd_status hvd_op_reduce_bound(hvd_engine *engine, uint64_t offset, const void *in, void *out_buffer, uint64_t bytes, uint32_t flags,
                                       uint64_t tag, hvd_op *out);
/* Helps everything open that this rank takes part in, waits, spins then sleeps; returns HVD_PENDING after timeout_ms.
 * Cooperative: HVD_OK means the output is written and the op handle is gone.
 * Pull: HVD_OK means all members have arrived; the op lives on until hvd_op_done.
 * Failures free the op after every claim in its round has ended or its holder is dead (within timeout_ms, else HVD_PENDING). */
HVD_API hvd_status hvd_op_wait(hvd_engine *engine, hvd_op op, uint32_t timeout_ms);
/* What the op waits for has got another name: hvd_rank_info shows this tag from now on. */
HVD_API hvd_status hvd_op_tag(hvd_engine *engine, hvd_op op, uint64_t tag);
/* One bit of help, no waiting. HVD_OK: finished and, for cooperative ops, the output is written; hvd_op_wait still frees the handle. */
HVD_API hvd_status hvd_op_poll(hvd_engine *engine, hvd_op op);
/* Fails an op (bound or not) of this process; its waiters get HVD_E_CANCELLED.  A round in which it had arrived and that has not
 * opened can never open then: the other members' ops in it end with HVD_E_CANCELLED too.  A round that has opened goes on. */
HVD_API hvd_status hvd_op_fail(hvd_engine *engine, hvd_op op);

/* Pull ops whose hvd_op_wait returned HVD_OK: */
HVD_API hvd_status hvd_op_meta(hvd_engine *engine, hvd_op op, uint32_t member, int64_t *meta, uint32_t capacity, uint32_t *n, uint64_t *data_bytes);
typedef struct { uint32_t member; uint64_t source_offset; void *out; uint64_t bytes; } hvd_copy;
HVD_API hvd_status hvd_op_pull_copy(hvd_engine *engine, hvd_op op, const hvd_copy *copies, uint32_t n);
/* out = reduce over all members of bytes [source_offset, source_offset + bytes) of their data, by the plan's dtype, op and factors. */
HVD_API hvd_status hvd_op_pull_reduce(hvd_engine *engine, hvd_op op, uint64_t source_offset, void *out, uint64_t bytes);
/* This member has read what it needs; frees the handle.  Its own data stays published until all members have done so. */
HVD_API hvd_status hvd_op_done(hvd_engine *engine, hvd_op op);

#ifdef __cplusplus
}
#endif
#endif
