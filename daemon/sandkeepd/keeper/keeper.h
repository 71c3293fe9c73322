/* The parts that all of the keeper's program is made of: the calls of the kernel, texts, memory and signals. There is no library.
 * Each source file has its own copy of what it uses. */

#pragma GCC diagnostic ignored "-Wunused-function"

typedef unsigned long word;

enum { NOENT = -2, INTR = -4, AGAIN = -11, ISDIR = -21, NOTSUP = -95, NOEXEC = -8, ACCES = -13, NOTDIR = -20 }; /* what the kernel answers */
enum { RDONLY = 0, WRONLY = 1, RDWR = 2, CREAT = 0100, TRUNC = 01000, APPEND = 02000, NONBLOCK = 04000, CLOEXEC = 02000000, HERE = -100 };
enum { SET_FLAGS = 4, NO_DATA = -6, EMPTY_PATH = 0x1000, TYPE_AND_SIZE = 0x201, KIND = 0170000, REGULAR = 0100000, SEEK_TO_DATA = 3, PUNCH = 3, BROKEN = 8 };
enum { LOCK_SHARED = 1, LOCK_ALONE = 2, LOCK_QUICKLY = 4, SUBREAPER = 36 };
enum { SIGHUP = 1, SIGINT = 2, SIGKILL = 9, SIGPIPE = 13, SIGTERM = 15, SIGCHLD = 17, SIGCONT = 18, SIGXFSZ = 25, SIGNALS = 64 };
enum { FSIZE = 1, PRIVATE = 2, CORE = 4, NPROC = 6, NOFILE = 7, LIMITS = 10 }; /* limits of a process; 2 is RLIMIT_DATA */
enum { SHARED_UNTIL_EXEC = 0x4100 }; /* flags of clone: CLONE_VM and CLONE_VFORK */
enum { BLOCK = 0, SETMASK = 2, NOHANG = 1, MONOTONIC = 1, DUP_CLOEXEC = 1030, READABLE = 1, WRITABLE = 4, SEEK_TO_END = 2, FOLLOW = 0x400 };
enum { PATH_BYTES = 4096, LINE_BYTES = 256, REQUEST_BYTES = 65536, ID_BYTES = 65, REMEMBERED = 512, FIRST_ROOM = 65536 };
enum { FIFO = 010000 }; /* a kind of file */
enum { CANNOT = 126, NOT_FOUND = 127, CALLED_WRONGLY = 125, NOT_SAVED = 1, NOT_ASKED = 3 };
enum { UNIX = 1, STREAM = 1, NO_SIGNAL = 0x4000, RIGHTS = 1, PEER = 17, EXCLUSIVE = 0200, SOCKET_BYTES = 108 };
enum { LISTENER = 15, FILTER = 1, NEW_LISTENER = 8, ALLOW = 0x7fff0000, ASK = 0x7fc00000, NEWUSER = 0x10000000, HUNG_UP = 16, SENT = 2 };
enum { RECEIVE_NOTICE = (int)0xc0502100, SEND_ANSWER = (int)0xc0182101, ADD_DESCRIPTOR = 0x40182103, INVALID = -22, PACE_NS = 1000000, LEAST = 19 };
enum { LINKS = 4, LOOK_S = 20 }; /* of statx; seconds of waiting until it looks if its directory is still there */
enum { FEEDS = 16, AT_ONCE = 32 }; /* the first descriptor that none of those is which a program begins with */

#if defined(__x86_64__)
enum { READ = 0, WRITE = 1, CLOSE = 3, LSEEK = 8, MMAP = 9, MUNMAP = 11, SIGACTION = 13, SIGPROCMASK = 14, MREMAP = 25, SOCKET = 41, CONNECT = 42, SENDMSG = 46, GETSOCKOPT = 55, CLONE = 56,
       EXECVE = 59, EXIT = 60, WAIT4 = 61, KILL = 62, FCNTL = 72, CHDIR = 80, UMASK = 95, SETSID = 112, CLOCK_GETTIME = 228,
       OPENAT = 257, LINKAT = 265, PPOLL = 271, SIGNALFD = 289, DUP3 = 292, PRLIMIT = 302,
       PIPE2 = 293, MKNODAT = 259, UNLINKAT = 263, RENAMEAT = 264, NOFOLLOW = 0400000, NAMELESS = 020200000,
       IOCTL = 16, SETPRIORITY = 141, UNSHARE = 272, INOTIFY_INIT1 = 294, SECCOMP = 317, PIDFD_OPEN = 434, PIDFD_GETFD = 438 };
enum { PREAD = 17, PWRITE = 18, GETPID = 39, FLOCK = 73, PRCTL = 157, GETDENTS = 217, INOTIFY_ADD_WATCH = 254, MKDIRAT = 258, FALLOCATE = 285, STATX = 332 };
/* By which numbers inotify is started, without flags and with them, by native programs and by those for 32 bits. */
enum { NATIVE = (int)0xc000003e, STARTS = 253, STARTS_WITH = INOTIFY_INIT1, OTHER = 0x40000003, OTHER_STARTS = 291, OTHER_STARTS_WITH = 332 };

static long call(long number, long first, long second, long third, long fourth, long fifth) {
	register long r10 __asm__("r10") = fourth;
	register long r8 __asm__("r8") = fifth;
	register long r9 __asm__("r9") = 0;
	long answer;
	__asm__ volatile("syscall"
	                 : "=a"(answer)
	                 : "a"(number), "D"(first), "S"(second), "d"(third), "r"(r10), "r"(r8), "r"(r9)
	                 : "rcx", "r11", "memory");
	return answer;
}

/* Clone, with all memory shared; the new process calls `enter`, which does not come back, on the stack below `stack`. */
static long clone_onto(word stack, void (*enter)(void *), void *with) {
	register long r10 __asm__("r10") = 0;
	register long r8 __asm__("r8") = 0;
	register void (*to)(void *) __asm__("r12") = enter;
	register void *argument __asm__("r13") = with;
	long answer;
	__asm__ volatile("syscall\n\ttest %%rax, %%rax\n\tjnz 1f\n\tmov %%r13, %%rdi\n\tcall *%%r12\n1:"
	                 : "=a"(answer)
	                 : "a"((long)CLONE), "D"((long)SHARED_UNTIL_EXEC | SIGCHLD), "S"(stack), "d"(0L), "r"(r10), "r"(r8), "r"(to),
	                   "r"(argument)
	                 : "rcx", "r11", "memory");
	return answer;
}

#elif defined(__aarch64__)
enum { DUP3 = 24, FCNTL = 25, MKNODAT = 33, UNLINKAT = 35, LINKAT = 37, RENAMEAT = 38, PIPE2 = 59, CHDIR = 49, OPENAT = 56, CLOSE = 57, LSEEK = 62, READ = 63, WRITE = 64, PPOLL = 73,
       SIGNALFD = 74, EXIT = 93, CLOCK_GETTIME = 113, KILL = 129, SIGACTION = 134, SIGPROCMASK = 135, SETSID = 157,
       UMASK = 166, MREMAP = 216, SOCKET = 198, CONNECT = 203, SENDMSG = 211, GETSOCKOPT = 209, MUNMAP = 215, CLONE = 220, EXECVE = 221, MMAP = 222, WAIT4 = 260, PRLIMIT = 261, NOFOLLOW = 0100000,
       NAMELESS = 020040000,
       IOCTL = 29, SETPRIORITY = 140, UNSHARE = 97, INOTIFY_INIT1 = 26, SECCOMP = 277, PIDFD_OPEN = 434, PIDFD_GETFD = 438 };
enum { INOTIFY_ADD_WATCH = 27, FLOCK = 32, MKDIRAT = 34, FALLOCATE = 47, GETDENTS = 61, PREAD = 67, PWRITE = 68, PRCTL = 167, GETPID = 172, STATX = 291 };
enum { NATIVE = (int)0xc00000b7, STARTS = INOTIFY_INIT1, STARTS_WITH = INOTIFY_INIT1, OTHER = 0x40000028, OTHER_STARTS = 316, OTHER_STARTS_WITH = 360 };

static long call(long number, long first, long second, long third, long fourth, long fifth) {
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = first;
	register long x1 __asm__("x1") = second;
	register long x2 __asm__("x2") = third;
	register long x3 __asm__("x3") = fourth;
	register long x4 __asm__("x4") = fifth;
	register long x5 __asm__("x5") = 0;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}

static long clone_onto(word stack, void (*enter)(void *), void *with) {
	register long x8 __asm__("x8") = CLONE;
	register long x0 __asm__("x0") = SHARED_UNTIL_EXEC | SIGCHLD;
	register long x1 __asm__("x1") = (long)stack;
	register long x2 __asm__("x2") = 0;
	register long x3 __asm__("x3") = 0;
	register long x4 __asm__("x4") = 0;
	register void *argument __asm__("x19") = with;
	register void (*to)(void *) __asm__("x20") = enter;
	__asm__ volatile("svc 0\n\tcbnz x0, 1f\n\tmov x0, x19\n\tblr x20\n1:"
	                 : "+r"(x0)
	                 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(argument), "r"(to)
	                 : "x30", "memory");
	return x0;
}

#else
#error "the system calls of this machine are not known here"
#endif

static void leave(int code) {
	for (;;)
		call(EXIT, code, 0, 0, 0, 0);
}

static long open_at(const char *path, long flags) { return call(OPENAT, HERE, (long)path, flags | CLOEXEC, 0666, 0); }

static void shut(long descriptor) {
	if (descriptor >= 0)
		call(CLOSE, descriptor, 0, 0, 0, 0);
}

/* Texts */

static long length(const char *text) {
	long bytes = 0;
	while (text[bytes])
		bytes++;
	return bytes;
}

static int same(const char *one, const char *other) {
	while (*one && *one == *other)
		one++, other++;
	return *one == *other;
}

static int starts(const char *text, const char *with) {
	while (*with && *text == *with)
		text++, with++;
	return !*with;
}

static void copy(void *into, const void *from, long bytes) {
	for (long i = 0; i < bytes; i++)
		((char *)into)[i] = ((const char *)from)[i];
}

/* keeper.c. Compilers expect them to be there. */
void *memset(void *into, int byte, word bytes);
void *memcpy(void *into, const void *from, word bytes);

static void say(const char *text) { call(WRITE, 2, (long)text, length(text), 0, 0); }

static long number_of(const char *text) {
	long number = 0;
	for (; *text >= '0' && *text <= '9' && number < 100000000000000000; text++)
		number = number * 10 + *text - '0';
	return number;
}

/* The length of the name in NAME=VALUE; -1 for a word that is none. */
static long name_of(const char *word) {
	long bytes = 0;
	while (word[bytes] && word[bytes] != '=')
		bytes++;
	return word[bytes] ? bytes : -1;
}

/* Whether both are NAME=VALUE with the same name. */
static int same_name(const char *one, const char *other) {
	long bytes = name_of(one);
	if (bytes < 0)
		return 0;
	for (long i = 0; i <= bytes; i++)
		if (one[i] != other[i])
			return 0;
	return 1;
}

/* The next word of a line, which is cut off there. */
static char *next_word(char **rest) {
	char *found = *rest, *at = found;
	while (*at && *at != ' ')
		at++;
	if (*at)
		*at++ = 0;
	*rest = at;
	return found;
}

/* A line that is put together here, and written at once. */
struct line {
	char text[LINE_BYTES];
	long used;
};

static void add(struct line *line, const char *text) {
	for (; *text && line->used < LINE_BYTES; text++)
		line->text[line->used++] = *text;
}

static void add_number(struct line *line, long number) {
	char digits[24];
	long at = sizeof digits;
	digits[--at] = 0;
	do
		digits[--at] = '0' + number % 10;
	while (number /= 10);
	add(line, digits + at);
}

/* Bytes of any number. `broken` when there was no memory for them. */
struct store {
	char *bytes;
	long used, room;
	int broken;
};

static int make_room(struct store *store, long more) {
	if (store->used + more <= store->room)
		return 1;
	long room = store->room ? store->room : FIRST_ROOM;
	while (room < store->used + more)
		room *= 2;
	long found = store->room ? call(MREMAP, (long)store->bytes, store->room, room, 1, 0) : call(MMAP, 0, room, 3, 0x22, -1);
	if (found < 0 && found > -4096)
		return 0;
	store->bytes = (char *)found;
	store->room = room;
	return 1;
}

/* What a text means, in its own place; answers its end. */
static char *unescape(char *text, char *end) {
	char *into = text;
	for (; text < end; text++)
		if (*text == '\\' && text + 1 < end)
			*into++ = *++text == 'n' ? '\n' : *text;
		else
			*into++ = *text;
	return into;
}

static void keep(struct store *store, char *text, char *end) {
	end = unescape(text, end);
	if (!make_room(store, end - text)) {
		store->broken = 1;
		return;
	}
	copy(store->bytes + store->used, text, end - text);
	store->used += end - text;
}

/* How many pieces there are in it, each with a NUL after it. */
static long pieces(const char *from, const char *end) {
	long count = 0;
	for (; from < end; from++)
		count += !*from;
	return count;
}

/* struct sigaction, as the kernel has it. */
struct action {
	word handler, flags, restorer, mask;
};

static void handle(long signal, word handler) {
	struct action action = {handler, 0, 0, 0};
	call(SIGACTION, signal, (long)&action, 0, 8, 0);
}

static void default_signals(void) {
	word none = 0;
	for (long signal = 1; signal <= SIGNALS; signal++)
		handle(signal, 0);
	call(SIGPROCMASK, SETMASK, (long)&none, 0, 8, 0);
}

/* The path of a file of the process's; `into` has room for it. */
static char *path_of(char *into, const char *directory, const char *id, const char *end) {
	long used = length(directory);
	copy(into, directory, used);
	into[used++] = '/';
	copy(into + used, id, length(id));
	used += length(id);
	copy(into + used, end, length(end) + 1);
	return into;
}

static int is_id(const char *text) {
	long bytes = 0;
	for (; text[bytes]; bytes++) {
		char c = text[bytes];
		if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-'))
			return 0;
	}
	return bytes && bytes < ID_BYTES;
}

static void put(long descriptor, long as) { call(DUP3, descriptor, as, 0, 0, 0); }

struct polled {
	int descriptor;
	short wanted, found;
};

/* keeper.c */
extern int serving;
void run(char **program, char **environment, char **where);
void keep_sandbox(char **words, int by_name);

/* pod.c, relay.c and piped.c */
void keep_pod(char **words, int behind);
void relay(const char *directory);
void run_piped(char **words, char **environment);
