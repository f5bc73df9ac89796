/* The native runner: one RPC session of TVM on a device, over standard input and output.
 *
 *     runner serve --threads N --home DIR --owner TOKEN [--cpus N,N...] [--wait S] [--idle S] [--limit S]
 *     runner listen --threads N --home DIR --key-file FILE [--cpus N,N...] [--wait S] [--idle S] [--limit S]
 *     runner version
 *
 * It needs nothing of the device but a kernel: TVM's runtime libraries lie beside it, and where the
 * folder brings a loader and a C library along, those are used in place of the device's. `serve` listens on
 * nothing. The other end of its standard streams, an SSH channel or an adb connection, is the session:
 *
 *  1. It takes the device's lock, DIR/lock, so that sessions of different users wait in turn; while it waits
 *     for one it says so, "edgetune-runner waiting PID", and after S seconds "edgetune-runner busy PID". A
 *     session that the same owner left behind, stopped or cut off, is killed.
 *  2. It writes one line, "edgetune-runner 1 PID", and forks. The child serves TVM's RPC protocol on a
 *     socket pair; this process copies bytes between the socket and the standard streams.
 *  3. It ends, and kills the child, when the input ends, when the child ends (a kernel that crashed),
 *     when nothing moved for --idle seconds, or after --limit seconds; the session's folder is removed.
 *
 * `listen` waits for TVM's own RPC clients on the socket DIR/socket, in a folder that nobody else may enter: for
 * `adb forward` and `ssh -L`. A client must know the key in FILE before anything else is done for it. Each gets
 * a process that goes on as above, without the lines.
 *
 * With -DEDGETUNE_OWN_RPC, server.c serves the session, for devices that TVM's libraries do not exist for. Else it is
 * written against tvm-ffi's stable C interface, and loaded late, so that it is compiled without TVM's
 * libraries: by any C compiler for the device.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef EDGETUNE_OWN_RPC
#include <tvm/ffi/c_api.h>
#endif

enum { PROTOCOL = 1, BUFFER_BYTES = 1 << 16 };
/* Of TVM's RPC (src/runtime/rpc/rpc_endpoint.h), and how many seconds a client may take to say its key. */
enum { RPC_MAGIC = 0xff271, RPC_MISMATCH = RPC_MAGIC + 2, MOST_KEY_BYTES = 512, GREETING_S = 10 };
/* How long a session may take to notice by itself that its client is gone. */
static const double HANGUP_GRACE_S = 0.3;

static char session_folder[PATH_MAX];
static int speaks = 1; /* whether standard output is for lines, too */

static void tell(const char* what, long number) {
  if (!speaks) return;
  printf("edgetune-runner %s %ld\n", what, number);
  fflush(stdout);
}

static void die(int code, const char* what, const char* which) {
  fprintf(stderr, "runner: %s %s: %s\n", what, which, strerror(errno));
  exit(code);
}

static double now_s(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

#ifdef EDGETUNE_OWN_RPC
int edgetune_serve_rpc(int socket, const char* folder, int threads); /* server.c */
#else
/* ---- TVM ---------------------------------------------------------------------------------------- */

static int (*ffi_get_global)(const TVMFFIByteArray*, TVMFFIObjectHandle*);
static int (*ffi_set_global)(const TVMFFIByteArray*, TVMFFIObjectHandle, int);
static int (*ffi_create)(void*, TVMFFISafeCallType, void (*)(void*), TVMFFIObjectHandle*);
static int (*ffi_call)(TVMFFIObjectHandle, TVMFFIAny*, int32_t, TVMFFIAny*);
static int (*ffi_string)(const TVMFFIByteArray*, TVMFFIAny*);
static void (*ffi_raise)(const char*, const char*);

static TVMFFIByteArray bytes_of(const char* text) {
  TVMFFIByteArray bytes = {text, strlen(text)};
  return bytes;
}

static void* symbol(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (found == NULL) {
    fprintf(stderr, "runner: %s\n", dlerror());
    exit(4);
  }
  return found;
}

static void* open_library(const char* folder, const char* name, int required) {
  char path[PATH_MAX];
  if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) exit(4);
  /* Global, because kernels look up the runtime's symbols. */
  void* library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (library == NULL && required) {
    fprintf(stderr, "runner: %s\n", dlerror());
    exit(4);
  }
  return library;
}

static void load_tvm(const char* folder) {
  void* ffi = open_library(folder, "libtvm_ffi.so", 1);
  open_library(folder, "libtvm_runtime.so", 1);
  /* The sorting that TopK calls. */
  open_library(folder, "libtvm_runtime_extra.so", 1);
  /* Only where a GPU's own libraries are. */
  open_library(folder, "libtvm_runtime_cuda.so", 0);
  *(void**)&ffi_get_global = symbol(ffi, "TVMFFIFunctionGetGlobal");
  *(void**)&ffi_set_global = symbol(ffi, "TVMFFIFunctionSetGlobal");
  *(void**)&ffi_create = symbol(ffi, "TVMFFIFunctionCreate");
  *(void**)&ffi_call = symbol(ffi, "TVMFFIFunctionCall");
  *(void**)&ffi_string = symbol(ffi, "TVMFFIStringFromByteArray");
  *(void**)&ffi_raise = symbol(ffi, "TVMFFIErrorSetRaisedFromCStr");
}

static TVMFFIObjectHandle global_function(const char* name) {
  TVMFFIByteArray bytes = bytes_of(name);
  TVMFFIObjectHandle function = NULL;
  if (ffi_get_global(&bytes, &function) != 0 || function == NULL) {
    fprintf(stderr, "runner: TVM's runtime has no function %s\n", name);
    exit(4);
  }
  return function;
}

static void register_function(const char* name, TVMFFISafeCallType body) {
  TVMFFIByteArray bytes = bytes_of(name);
  TVMFFIObjectHandle function = NULL;
  if (ffi_create(NULL, body, NULL, &function) != 0 || ffi_set_global(&bytes, function, 1) != 0) {
    fprintf(stderr, "runner: cannot register %s\n", name);
    exit(4);
  }
}

/* The text of a string argument, in any of the forms that tvm-ffi passes. */
static int text_of(const TVMFFIAny* any, const char** text, size_t* length) {
  switch (any->type_index) {
    case kTVMFFIRawStr:
      *text = any->v_c_str;
      *length = strlen(*text);
      return 0;
    case kTVMFFISmallStr:
      *text = any->v_bytes;
      *length = any->small_str_len;
      return 0;
    case kTVMFFIStr: {
      const TVMFFIByteArray* bytes = (const TVMFFIByteArray*)((const char*)any->v_obj + sizeof(TVMFFIObject));
      *text = bytes->data;
      *length = bytes->size;
      return 0;
    }
    default:
      return -1;
  }
}

/* Where a file of the session lies: in its folder, whatever folders the name has. */
static int path_of(const TVMFFIAny* args, int32_t count, char* path, size_t size) {
  const char* text = NULL;
  size_t length = 0;
  if (count < 1 || text_of(&args[0], &text, &length) != 0) {
    ffi_raise("TypeError", "a file name is needed");
    return -1;
  }
  size_t start = length;
  while (start > 0 && text[start - 1] != '/') --start;
  int written = snprintf(path, size, "%s/%.*s", session_folder, (int)(length - start), text + start);
  if (written < 0 || (size_t)written >= size) {
    ffi_raise("ValueError", "the file name is too long");
    return -1;
  }
  return 0;
}

static int workpath(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self;
  char path[PATH_MAX];
  if (path_of(args, count, path, sizeof path) != 0) return -1;
  TVMFFIByteArray bytes = bytes_of(path);
  return ffi_string(&bytes, result);
}

static int load_module(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self;
  char path[PATH_MAX];
  if (path_of(args, count, path, sizeof path) != 0) return -1;
  TVMFFIAny argument;
  memset(&argument, 0, sizeof argument);
  argument.type_index = kTVMFFIRawStr;
  argument.v_c_str = path;
  return ffi_call(global_function("ffi.ModuleLoadFromFile"), &argument, 1, result);
}

/* The bytes of an argument, in any of the forms that tvm-ffi passes. */
static int data_of(const TVMFFIAny* any, const char** data, size_t* length) {
  const TVMFFIByteArray* bytes = NULL;
  switch (any->type_index) {
    case kTVMFFIByteArrayPtr:
      bytes = (const TVMFFIByteArray*)any->v_ptr;
      break;
    case kTVMFFIBytes:
      bytes = (const TVMFFIByteArray*)((const char*)any->v_obj + sizeof(TVMFFIObject));
      break;
    case kTVMFFISmallBytes:
      *data = any->v_bytes;
      *length = any->small_str_len;
      return 0;
    default:
      return -1;
  }
  *data = bytes->data;
  *length = bytes->size;
  return 0;
}

/* In place of TVM's, which says nothing where the disk is full: a library of which a part is missing crashes. */
static int upload(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self;
  char path[PATH_MAX], message[PATH_MAX + 128];
  const char* data = NULL;
  size_t length = 0;
  if (path_of(args, count, path, sizeof path) != 0) return -1;
  if (count < 2 || data_of(&args[1], &data, &length) != 0) {
    ffi_raise("TypeError", "bytes are needed");
    return -1;
  }
  FILE* file = fopen(path, "wb");
  int complete = file != NULL && fwrite(data, 1, length, file) == length;
  int why = errno;
  if (file != NULL && fclose(file) != 0 && complete) {
    complete = 0;
    why = errno;
  }
  if (!complete) {
    unlink(path);
    snprintf(message, sizeof message, "the file cannot be stored: %s", strerror(why));
    ffi_raise("OSError", message);
    return -1;
  }
  memset(result, 0, sizeof *result);
  return 0;
}

static int peak_memory_bytes(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self, (void)args, (void)count;
  long long kilobytes = 0;
  char line[256];
  FILE* status = fopen("/proc/self/status", "r");
  while (status != NULL && fgets(line, sizeof line, status) != NULL) {
    if (sscanf(line, "VmHWM: %lld", &kilobytes) == 1) break;
  }
  if (status != NULL) fclose(status);
  memset(result, 0, sizeof *result);
  result->type_index = kTVMFFIInt;
  result->v_int64 = kilobytes * 1024;
  return 0;
}

#endif

static void serve_child(int connection, const char* folder) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  struct rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none); /* crashes are expected, their core files not wanted */
  signal(SIGPIPE, SIG_DFL);
  /* Whatever a kernel prints must not run into the session's bytes. */
  dup2(STDERR_FILENO, STDOUT_FILENO);
  close(STDIN_FILENO);
  if (chdir(session_folder) != 0) die(4, "cannot enter", session_folder);
#ifdef EDGETUNE_OWN_RPC
  (void)folder;
  _exit(edgetune_serve_rpc(connection, session_folder, atoi(getenv("TVM_NUM_THREADS"))));
#else
  load_tvm(folder);
  register_function("tvm.rpc.server.workpath", workpath);
  register_function("tvm.rpc.server.upload", upload);
  register_function("tvm.rpc.server.load_module", load_module);
  register_function("edgetune.peak_memory_bytes", peak_memory_bytes);
  TVMFFIAny argument, result;
  memset(&argument, 0, sizeof argument);
  memset(&result, 0, sizeof result);
  argument.type_index = kTVMFFIInt;
  argument.v_int64 = connection;
  _exit(ffi_call(global_function("rpc.ServerLoop"), &argument, 1, &result) == 0 ? 0 : 5);
#endif
}

/* ---- the session's folder and the device's lock -------------------------------------------------- */

/* Remove a folder of files; the session's own programs make no folders in it. */
static void remove_folder(const char* folder) {
  DIR* listing = opendir(folder);
  if (listing == NULL) return;
  for (struct dirent* entry; (entry = readdir(listing)) != NULL;) {
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
      unlinkat(dirfd(listing), entry->d_name, 0);
    }
  }
  closedir(listing);
  rmdir(folder);
}

/* Remove what killed sessions left behind; to be called with the lock held. */
static void remove_leftovers(const char* sessions) {
  DIR* listing = opendir(sessions);
  if (listing == NULL) return;
  for (struct dirent* entry; (entry = readdir(listing)) != NULL;) {
    char path[PATH_MAX];
    if (entry->d_name[0] == '.') continue;
    if (snprintf(path, sizeof path, "%s/%s", sessions, entry->d_name) < (int)sizeof path) remove_folder(path);
  }
  closedir(listing);
}

/* Take the lock, waiting for other owners; kill what the same owner left. The holder's process and owner
 * are the lock file's text: while it is held, that process exists. */
static void take_lock(const char* home, const char* owner, double wait_s) {
  char path[PATH_MAX], holder[256];
  if (snprintf(path, sizeof path, "%s/lock", home) >= (int)sizeof path) exit(4);
  int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0) die(4, "cannot open", path);
  double end_s = now_s() + wait_s;
  int told = 0;
  while (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) die(4, "cannot lock", path);
    ssize_t length = pread(lock, holder, sizeof holder - 1, 0);
    long pid = 0;
    char name[128] = "";
    if (length > 0) {
      holder[length] = 0;
      int known = sscanf(holder, "%ld %127s", &pid, name) == 2 && pid > 1;
      if (known && strcmp(name, owner) == 0) {
        kill(-(pid_t)pid, SIGKILL);
      } else if (!told) {
        tell("waiting", pid);
        told = 1;
      }
    }
    if (now_s() > end_s) {
      tell("busy", pid);
      exit(3);
    }
    poll(NULL, 0, 50);
  }
  int length = snprintf(holder, sizeof holder, "%ld %s\n", (long)getpid(), owner);
  if (ftruncate(lock, 0) != 0 || pwrite(lock, holder, (size_t)length, 0) != length) die(4, "cannot write", path);
}

/* ---- copying bytes, watching over the child ------------------------------------------------------ */

typedef struct {
  int from, to;
  size_t start, end;
  int ended; /* the input has ended */
  char data[BUFFER_BYTES];
} Pipe;

/* Read what there is room for; 1 when something came. */
static int fill(Pipe* pipe) {
  if (pipe->ended || pipe->end == BUFFER_BYTES) return 0;
  ssize_t count = read(pipe->from, pipe->data + pipe->end, BUFFER_BYTES - pipe->end);
  if (count > 0) pipe->end += (size_t)count;
  if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) pipe->ended = 1;
  return count > 0;
}

/* Write what is there; -1 when the output is closed. */
static int drain(Pipe* pipe) {
  while (pipe->start < pipe->end) {
    ssize_t count = write(pipe->to, pipe->data + pipe->start, pipe->end - pipe->start);
    if (count < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
    pipe->start += (size_t)count;
  }
  pipe->start = pipe->end = 0;
  return 0;
}

static volatile sig_atomic_t told_to_end = 0;

static void on_signal(int number) {
  (void)number;
  told_to_end = 1;
}

/* Copy in both directions until one end is gone or the time is over. */
static void copy_until_end(int connection, double idle_s, double limit_s) {
  static Pipe in, out;
  in.from = STDIN_FILENO, in.to = connection;
  out.from = connection, out.to = STDOUT_FILENO;
  int descriptors[] = {STDIN_FILENO, STDOUT_FILENO, connection};
  for (size_t i = 0; i < 3; ++i) fcntl(descriptors[i], F_SETFL, fcntl(descriptors[i], F_GETFL) | O_NONBLOCK);
  double started_s = now_s(), moved_s = started_s;
  while (!told_to_end) {
    /* A descriptor that nothing can be done with now is left out: its hang-up would end every wait. */
    struct pollfd polls[4] = {
        {in.ended || in.end == BUFFER_BYTES ? -1 : in.from, POLLIN, 0},
        {in.start < in.end ? in.to : -1, POLLOUT, 0},
        {out.ended || out.end == BUFFER_BYTES ? -1 : out.from, POLLIN, 0},
        {out.start < out.end ? out.to : -1, POLLOUT, 0},
    };
    if (poll(polls, 4, 1000) < 0 && errno != EINTR) return;
    int moved = 0;
    if (polls[0].revents) moved |= fill(&in);
    if (polls[2].revents) moved |= fill(&out);
    size_t waiting = (in.end - in.start) + (out.end - out.start);
    if (drain(&in) != 0 || drain(&out) != 0) return;
    if (moved || waiting != (in.end - in.start) + (out.end - out.start)) moved_s = now_s();
    if (in.ended && in.start == in.end) return;
    if (out.ended && out.start == out.end) return;
    double time_s = now_s();
    if (time_s - moved_s > idle_s || (limit_s > 0 && time_s - started_s > limit_s)) {
      fprintf(stderr, "runner: the session used up its time and was ended\n");
      return;
    }
  }
}

static void end_child(pid_t child, int connection) {
  shutdown(connection, SHUT_RDWR);
  double end_s = now_s() + HANGUP_GRACE_S;
  while (waitpid(child, NULL, WNOHANG) == 0) {
    if (now_s() > end_s) {
      kill(child, SIGKILL);
      waitpid(child, NULL, 0);
      return;
    }
    poll(NULL, 0, 10);
  }
}

/* ---- the command line ---------------------------------------------------------------------------- */

static const char* option(int count, char** values, const char* name, const char* fallback) {
  for (int i = 2; i + 1 < count; i += 2) {
    if (strcmp(values[i], name) == 0) return values[i + 1];
  }
  return fallback;
}

static void own_folder(const char* program, char* folder) {
  /* Started as "./ld.so ... FOLDER/runner": /proc/self/exe is the loader then. */
  char copy[PATH_MAX];
  snprintf(copy, sizeof copy, "%s", program);
  char* slash = strrchr(copy, '/');
  if (slash != NULL) *slash = 0;
  if (realpath(slash == NULL ? "." : copy, folder) == NULL) die(4, "cannot find", program);
}

/* Restrict this process, and those that it starts, to a list of CPUs. */
static void pin(const char* list) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const char* rest = list; *rest != 0;) {
    char* end;
    long number = strtol(rest, &end, 10);
    if (end == rest || number < 0 || number >= CPU_SETSIZE) die(2, "cannot understand the CPUs", list);
    CPU_SET((size_t)number, &set);
    rest = *end == ',' ? end + 1 : end;
  }
  if (sched_setaffinity(0, sizeof set, &set) != 0) die(4, "cannot run on CPUs", list);
  /* TVM would bind its threads to the first CPUs of the machine, whatever this process is restricted to. */
  setenv("TVM_BIND_THREADS", "0", 1);
}

static void on_signals(void) {
  signal(SIGPIPE, SIG_IGN);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_signal;
  sigaction(SIGTERM, &action, NULL);
  sigaction(SIGHUP, &action, NULL);
  sigaction(SIGINT, &action, NULL);
}

/* Make the session's folder, with the device's lock held. */
static void enter_session(int count, char** values, const char* owner) {
  char sessions[PATH_MAX];
  const char* home = option(count, values, "--home", NULL);
  setpgid(0, 0);
  take_lock(home, owner, atof(option(count, values, "--wait", "0")));
  if (snprintf(sessions, sizeof sessions, "%s/sessions", home) >= (int)sizeof sessions) exit(4);
  if (mkdir(sessions, 0700) != 0 && errno != EEXIST) die(4, "cannot make", sessions);
  remove_leftovers(sessions);
  size_t size = sizeof session_folder;
  if (snprintf(session_folder, size, "%s/%ld", sessions, (long)getpid()) >= (int)size) exit(4);
  if (mkdir(session_folder, 0700) != 0) die(4, "cannot make", session_folder);
}

/* Serve one session over the standard streams. */
static void run_session(int count, char** values) {
  char folder[PATH_MAX];
  own_folder(values[0], folder);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) die(4, "cannot make", "a socket pair");
  pid_t child = fork();
  if (child < 0) die(4, "cannot start", "a process");
  if (child == 0) {
    close(ends[0]);
    serve_child(ends[1], folder);
  }
  close(ends[1]);
  copy_until_end(ends[0], atof(option(count, values, "--idle", "900")), atof(option(count, values, "--limit", "0")));
  end_child(child, ends[0]);
  remove_folder(session_folder);
}

static int serve(int count, char** values) {
  char protocol[16];
  on_signals();
  enter_session(count, values, option(count, values, "--owner", "nobody"));
  snprintf(protocol, sizeof protocol, "%d", PROTOCOL);
  tell(protocol, (long)getpid());
  run_session(count, values);
  return 0;
}

/* ---- listening ----------------------------------------------------------------------------------- */

static int receive_all(int connection, void* data, size_t size) {
  for (size_t done = 0; done < size;) {
    ssize_t count = recv(connection, (char*)data + done, size - done, 0);
    if (count <= 0) return -1;
    done += (size_t)count;
  }
  return 0;
}

/* Whether a client greets as TVM's do and knows the key; in a time that does not depend on how much of it is right. */
static int knows_key(int connection, const char* key) {
  int32_t head[2];
  char said[MOST_KEY_BYTES], wanted[MOST_KEY_BYTES];
  memset(said, 0, sizeof said);
  memset(wanted, 0, sizeof wanted);
  if (receive_all(connection, head, sizeof head) != 0 || head[0] != RPC_MAGIC) return 0;
  if (head[1] <= 0 || head[1] >= (int32_t)sizeof said) return 0;
  if (receive_all(connection, said, (size_t)head[1]) != 0) return 0;
  char* options = strchr(said, ' ');
  if (options != NULL) memset(options, 0, sizeof said - (size_t)(options - said));
  snprintf(wanted, sizeof wanted, "client:%s", key);
  unsigned char differs = 0;
  for (size_t i = 0; i < sizeof said; ++i) differs |= (unsigned char)(said[i] ^ wanted[i]);
  return !differs;
}

static void read_key(const char* path, char* key, size_t size) {
  FILE* file = fopen(path, "r");
  if (file == NULL || fgets(key, (int)size, file) == NULL) die(4, "cannot read", path);
  fclose(file);
  key[strcspn(key, "\r\n")] = 0;
  if (strlen(key) >= 16) return;
  fprintf(stderr, "runner: the key in %s is shorter than 16 characters: others could guess it\n", path);
  exit(2);
}

/* A socket that only this user can connect to: its folder lets nobody else in. */
static int private_socket(const char* home) {
  struct stat found;
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  size_t size = sizeof address.sun_path;
  umask(077);
  if (mkdir(home, 0700) != 0 && errno != EEXIST) die(4, "cannot make", home);
  if (stat(home, &found) != 0 || found.st_uid != geteuid() || (found.st_mode & 077) != 0) {
    fprintf(stderr, "runner: others may enter %s; chmod 700 it, it must be this user's own\n", home);
    exit(2);
  }
  if (snprintf(address.sun_path, size, "%s/socket", home) >= (int)size) {
    fprintf(stderr, "runner: the name of %s is too long for a socket in it\n", home);
    exit(2);
  }
  unlink(address.sun_path);
  int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0 || bind(listener, (struct sockaddr*)&address, sizeof address) != 0 || listen(listener, 8) != 0) {
    die(4, "cannot listen on", address.sun_path);
  }
  return listener;
}

/* One client, in a process of its own. */
static void serve_client(int connection, const char* key, int count, char** values) {
  static const char name[] = "server:runner";
  int32_t answer[2] = {RPC_MISMATCH, sizeof name - 1};
  char owner[32];
  signal(SIGCHLD, SIG_DFL);
  alarm(GREETING_S);
  int known = knows_key(connection, key);
  alarm(0);
  if (!known) {
    send(connection, answer, sizeof answer[0], MSG_NOSIGNAL);
    _exit(3);
  }
  speaks = 0;
  snprintf(owner, sizeof owner, "client-%ld", (long)getpid());
  enter_session(count, values, owner);
  answer[0] = RPC_MAGIC;
  send(connection, answer, sizeof answer, MSG_NOSIGNAL);
  send(connection, name, sizeof name - 1, MSG_NOSIGNAL);
  dup2(connection, STDIN_FILENO);
  dup2(connection, STDOUT_FILENO);
  close(connection);
  run_session(count, values);
  _exit(0);
}

static int listen_for_clients(int count, char** values) {
  char key[MOST_KEY_BYTES - sizeof "client:"];
  const char* file = option(count, values, "--key-file", NULL);
  if (file == NULL) {
    fprintf(stderr, "runner: listen needs --key-file\n");
    return 2;
  }
  read_key(file, key, sizeof key);
  int listener = private_socket(option(count, values, "--home", NULL));
  on_signals();
  signal(SIGCHLD, SIG_IGN); /* nobody waits for the processes of clients */
  tell("listening", (long)getpid());
  while (!told_to_end) {
    struct pollfd waiting = {listener, POLLIN, 0};
    if (poll(&waiting, 1, 1000) <= 0) continue;
    int connection = accept(listener, NULL, NULL);
    if (connection < 0) continue;
    if (fork() == 0) {
      close(listener);
      serve_client(connection, key, count, values);
    }
    close(connection);
  }
  return 0;
}

int main(int count, char** values) {
  const char* command = count >= 2 ? values[1] : "";
  if (strcmp(command, "serve") == 0 || strcmp(command, "listen") == 0) {
    const char* threads = option(count, values, "--threads", NULL);
    if (option(count, values, "--home", NULL) == NULL || threads == NULL) {
      fprintf(stderr, "usage: runner serve|listen --threads N --home DIR [--owner TOKEN | --key-file FILE] "
                      "[--cpus N,N...] [--wait S] [--idle S] [--limit S]\n");
      return 2;
    }
    /* Must be set before the runtime is loaded: it halves the cores by itself. */
    setenv("TVM_NUM_THREADS", threads, 1);
    const char* cpus = option(count, values, "--cpus", NULL);
    if (cpus != NULL) pin(cpus);
    return strcmp(command, "serve") == 0 ? serve(count, values) : listen_for_clients(count, values);
  }
  if (strcmp(command, "version") == 0) {
#ifndef EDGETUNE_OWN_RPC
    char folder[PATH_MAX];
    own_folder(values[0], folder);
    load_tvm(folder);
#endif
    printf("edgetune-runner %d\n", PROTOCOL);
    return 0;
  }
  fprintf(stderr, "usage: runner serve|listen|version ...\n");
  return 2;
}
