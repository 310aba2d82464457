// hvd-warden: the small process under which an agent starts each rank.
//
//   hvd-warden --control FD --status FD --grace-ms N -- command args...
//
// It leads a session of its own and adopts orphans of its children, so that every descendant can be found.  The end of the control
// pipe (its other end is closed, by exit or SIGKILL of the agent too) or a byte 'T' ends the tree: SIGTERM, after the grace SIGKILL
// until nobody is left.  'K' kills at once.  When the command exits by itself, what it left behind is ended the same way.  When the
// warden itself is killed, so is the command.
// Status lines: "started PID", then "exec-failed ERRNO" if so, then, as soon as the command is over, "exit CODE" or
// "signal NUMBER".  The end of the status pipe says that nobody is left.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace {

struct Options {
  int control = -1, status = -1;
  long grace_ms = 5000;
  char **command = nullptr;
};

struct Watch {
  Options options;
  pid_t main = -1;
  bool main_over = false, control_open = true;
  bool ending = false, killing = false;
  long deadline_ms = 0;
};

long now_ms() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000L + time.tv_nsec / 1000000L;
}

bool parse_number(const char *text, long &number) {
  char *end = nullptr;
  errno = 0;
  number = strtol(text, &end, 10);
  return errno == 0 && end != text && *end == 0 && number >= 0 && number <= 0x7fffffff;
}

bool parse(int argc, char **argv, Options &options) {
  for (int i = 1; i < argc; ++i) {
    if (!strcmp(argv[i], "--") && i + 1 < argc) {
      options.command = argv + i + 1;
      break;
    }
    long number = 0;
    if (i + 1 >= argc || !parse_number(argv[i + 1], number)) return false;
    if (!strcmp(argv[i], "--control")) options.control = static_cast<int>(number);
    else if (!strcmp(argv[i], "--status")) options.status = static_cast<int>(number);
    else if (!strcmp(argv[i], "--grace-ms")) options.grace_ms = number;
    else return false;
    ++i;
  }
  return options.command && options.control >= 0 && options.status >= 0;
}

void report(const Options &options, const char *word, long number) {
  char line[64];
  int bytes = snprintf(line, sizeof line, "%s %ld\n", word, number);
  // The agent may be gone; then nobody wants to know.
  if (write(options.status, line, static_cast<size_t>(bytes)) < 0) return;
}

struct Kin {
  pid_t parent = 0, group = 0;  // 0: the process is gone
};

// Parent and process group by /proc.  The name may hold anything, so the fields start after the last ')'.
Kin kin_of(pid_t pid) {
  char path[64], text[512];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  ssize_t bytes = read(file, text, sizeof text - 1);
  close(file);
  if (bytes <= 0) return {};
  text[bytes] = 0;
  const char *after = strrchr(text, ')');
  char state;
  Kin kin;
  return after && sscanf(after + 1, " %c %d %d", &state, &kin.parent, &kin.group) == 3 ? kin : Kin{};
}

struct Descendant {
  pid_t pid, group;
};

std::vector<Descendant> descendants() {
  std::multimap<pid_t, Descendant> children;
  DIR *proc = opendir("/proc");
  while (dirent *entry = proc ? readdir(proc) : nullptr) {
    pid_t pid = atoi(entry->d_name);
    if (pid <= 0) continue;
    Kin kin = kin_of(pid);
    children.insert({kin.parent, {pid, kin.group}});
  }
  if (proc) closedir(proc);
  std::vector<Descendant> found{{getpid(), getpid()}};
  for (size_t i = 0; i < found.size(); ++i) {
    auto range = children.equal_range(found[i].pid);
    for (auto child = range.first; child != range.second; ++child) found.push_back(child->second);
  }
  found.erase(found.begin());
  return found;
}

// The command's group first, at one stroke, so that few can fork meanwhile; its number is ours only while the command is not reaped.
// Then who is not in it.  Each gets a signal once: a handler of SIGTERM that saves the user's work must not run twice.
void signal_all(const Watch &watch, int number) {
  const pid_t group = watch.main_over ? 0 : watch.main;
  if (group) kill(-group, number);
  for (Descendant one : descendants())
    if (!group || one.group != group) kill(one.pid, number);
}

void ask_all(const Watch &watch) {
  signal_all(watch, SIGTERM);
  signal_all(watch, SIGCONT);  // a stopped process must see it
}

void begin_end(Watch &watch, bool at_once) {
  if (at_once && !watch.killing) {
    watch.killing = watch.ending = true;
    signal_all(watch, SIGKILL);
  } else if (!watch.ending) {
    watch.ending = true;
    watch.deadline_ms = now_ms() + watch.options.grace_ms;
    ask_all(watch);
  }
}

// Reaps all that ended; true when no child is left.
bool reap(Watch &watch) {
  for (;;) {
    int status = 0;
    pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid < 0) return errno == ECHILD;
    if (pid == 0) return false;
    if (pid != watch.main) continue;
    watch.main_over = true;
    if (WIFSIGNALED(status)) report(watch.options, "signal", WTERMSIG(status));
    else report(watch.options, "exit", WEXITSTATUS(status));
  }
}

void read_control(Watch &watch) {
  char bytes[64];
  ssize_t count = read(watch.options.control, bytes, sizeof bytes);
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (count <= 0) {
    watch.control_open = false;
    begin_end(watch, false);
    return;
  }
  for (ssize_t i = 0; i < count; ++i)
    if (bytes[i] == 'T' || bytes[i] == 'K') begin_end(watch, bytes[i] == 'K');
}

int run(Watch &watch, int signals) {
  while (!reap(watch)) {
    if (watch.main_over) begin_end(watch, false);
    if (watch.ending && !watch.killing && now_ms() >= watch.deadline_ms) begin_end(watch, true);
    if (watch.killing) signal_all(watch, SIGKILL);  // whoever was forked meanwhile
    pollfd wanted[2] = {{signals, POLLIN, 0}, {watch.control_open ? watch.options.control : -1, POLLIN, 0}};
    int timeout = watch.killing ? 20 : watch.ending ? static_cast<int>(watch.deadline_ms - now_ms()) : -1;
    poll(wanted, 2, watch.ending && timeout < 0 ? 0 : timeout);
    signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    }
    if (wanted[1].revents) read_control(watch);
  }
  return 0;
}

[[noreturn]] void exec_command(const Options &options, pid_t warden, int failure) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT}) signal(number, SIG_DFL);
  setpgid(0, 0);
  // The warden has one thread, so "the parent's thread is over" means that the warden was killed.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != warden) _exit(128 + SIGKILL);
  close(options.control);
  close(options.status);
  execvp(options.command[0], options.command);
  int code = errno;
  if (write(failure, &code, sizeof code) < 0) _exit(126);
  _exit(code == ENOENT ? 127 : 126);
}

bool start(Watch &watch) {
  int failure[2];
  if (pipe2(failure, O_CLOEXEC) != 0) return false;
  const pid_t warden = getpid();
  watch.main = fork();
  if (watch.main < 0) return false;
  if (watch.main == 0) exec_command(watch.options, warden, failure[1]);
  close(failure[1]);
  report(watch.options, "started", watch.main);
  int code = 0;
  if (read(failure[0], &code, sizeof code) == static_cast<ssize_t>(sizeof code)) report(watch.options, "exec-failed", code);
  close(failure[0]);
  return true;
}

// What the rank inherited belongs to the rank: its pipes and sockets must close when it and its children close them.
void close_all_but(const std::set<int> &kept) {
  std::vector<int> others;
  DIR *open_files = opendir("/proc/self/fd");
  if (!open_files) return;
  while (dirent *entry = readdir(open_files)) {
    long number = 0;
    if (parse_number(entry->d_name, number) && !kept.count(static_cast<int>(number))) others.push_back(static_cast<int>(number));
  }
  closedir(open_files);  // its own descriptor is among the others and fails to close twice, which is harmless
  for (int other : others) close(other);
}

}  // namespace

int main(int argc, char **argv) {
  Watch watch;
  if (!parse(argc, argv, watch.options)) {
    fprintf(stderr, "usage: hvd-warden --control FD --status FD --grace-ms N -- command args...\n");
    return 2;
  }
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT}) signal(number, SIG_IGN);
  signal(SIGCHLD, SIG_DFL);  // inherited as ignored, it would reap the command before its status is read
  setsid();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, nullptr);
  int signals = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
  fcntl(watch.options.control, F_SETFL, O_NONBLOCK);
  if (signals < 0 || !start(watch)) {
    report(watch.options, "exec-failed", errno);
    return 1;
  }
  close_all_but({watch.options.control, watch.options.status, signals});
  return run(watch, signals);
}
