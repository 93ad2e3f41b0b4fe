// One rank's transport for one group: the only owner of threads, clock and sockets. Drives a Group over
// Links; which thread does, says Turns. Threads that start operations send the first packets themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/links.h"
#include "engine/options.h"
#include "engine/results.h"
#include "engine/running_clock.h"
#include "engine/turns.h"
#include "group/group.h"

namespace optireduce {

struct EngineStats {
  Stats protocol;
  PolicySnapshot policy;  // for buckets of 1 MiB
  std::uint64_t socket_drops = 0;
  std::uint64_t send_failures = 0;
  std::size_t buffer_bytes = 0;
  bool multicast = false;          // decisions go to the multicast group
  double wait_seconds = 0;         // spent by threads waiting for operations
  double stood_still_seconds = 0;  // this process could not run although it had to
};

class Engine {
 public:
  Engine(Rank rank, Rank size, const std::string& bind_address, const Seal& seal,
         const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Connecting takes three steps, so that ranks can exchange what they learn: the local port for each peer
  /// and the grant; then connect (returns the smallest path MTU); then begin with the MTU and the grants that
  /// all agreed on.
  std::vector<std::uint16_t> ports() const { return links_.ports(); }
  std::size_t grant_bytes() const { return links_.grant_bytes(); }
  std::size_t open(const std::vector<std::string>& addresses, const std::vector<std::uint16_t>& ports);
  /// Returns the ranks that did not answer in time.
  std::vector<Rank> begin(std::size_t mtu, const std::vector<std::size_t>& grants, Duration timeout);

  /// A restarted process of this rank is at another address, on the port that it has for us.
  void redirect(Rank peer, const std::string& address, std::uint16_t port);

  /// Multicast takes three more steps: a group to speak to, on a port that is returned; joining it, with the
  /// ports of all; and, when everybody has joined, finding out who is not heard there. Then all agree on
  /// whether to use it.
  std::uint16_t open_group(const std::string& address, int ttl);
  void join_group(const std::vector<std::string>& addresses, const std::vector<std::uint16_t>& ports);
  std::vector<Rank> probe_group(Duration timeout);
  void use_group(bool use);

  /// Starts an operation; its memory must stay valid until wait() has returned its report.
  std::uint64_t start(const Call& call);
  /// The data of finished calls that stayed readable is about to be overwritten.
  void release();
  /// See Group::take_residual.
  KeptValues take_residual(std::uint32_t stream);

  /// See Group::position, Group::restore and Group::left_behind. To restore forgets the reports of operations
  /// from `position` on: other threads must have waited for theirs.
  Position position();
  void restore(const Position& position, std::uint64_t step);
  bool is_left_behind();
  /// See Group::behind and Group::give_up_replay.
  std::optional<std::uint64_t> behind();
  bool give_up_replay();

  /// See Checks::tell. It goes out with the next packets of the group: alone it would wake every other rank.
  std::vector<CheckedStep> check(std::uint64_t step, std::uint64_t hash);

  /// The report of an operation, waiting up to `limit` (negative: as long as it takes). Nothing: not done
  /// yet.
  std::optional<Report> wait(std::uint64_t operation, Duration limit);

  /// See Group::watch_outside.
  void watch_outside(Duration limit);
  Gone gone();

  /// Changes of membership since the last call.
  std::vector<MembershipEvent> take_events();

  EngineStats stats();

  /// Leaving while others go on: after prepare_to_leave the operations that they begin are to be called here
  /// as well, until may_leave. `next_uncalled` waits for one; nothing: time is over, or this rank may leave.
  void prepare_to_leave();
  bool may_leave();
  bool keeps_residual();
  std::optional<Uncalled> next_uncalled(Duration limit);

  /// Helps peers that still need our data for up to `linger`, fails what is not done, and stops. Does nothing
  /// in a forked child.
  void close(Duration linger);

 private:
  using Lock = Turns::Lock;
  using Done = std::function<bool()>;

  void require_begun() const;
  void require_open() const;
  Time limit_of(Duration timeout);
  void serve_until(Lock& lock, Time limit, const Done& done);

  void drive(Lock& lock, Driver role, Time limit, const Done& done);
  bool work_once();
  void sleep(Lock& lock, Driver role, Time limit);
  void wake_background();
  void wake_driver(Time due_before);
  void yield_core(Time now);
  void handle_events(std::span<const Links::Event> events);
  void receive_batch(const Links::Event& socket);
  void transmit_all(Time now);
  void collect_completions();
  void tell_standstill();
  void run_background();
  void wait_as_driver(Lock& lock, Time limit, const Done& done);

  const Rank rank_;
  const Rank size_;
  const Seal seal_;
  const EngineOptions options_;
  const int owner_;  // the process that made it

  Turns turns_;
  BufferPool pool_;
  Links links_;
  RunningClock clock_;
  std::unique_ptr<Group> group_;
  Transmit transmit_;
  std::vector<Datagram> datagrams_;
  Results results_;
  std::uint64_t busy_rounds_ = 0;  // in a row in which packets came
  double wait_seconds_ = 0;
  bool leaving_ = false;
  Duration told_skipped_;  // by the clock, as the group knows
  Time core_busy_until_;   // others want this core: sleep instead of yielding
  std::thread thread_;
};

}  // namespace optireduce
