/* leader -s|- [NAME=VALUE...] PROGRAM [ARGUMENT...]
 * leader -w ID MILLISECONDS [NAME=VALUE...] PROGRAM [ARGUMENT...]
 * leader -e CODE
 *
 * Becomes PROGRAM, in a session of its own with -s, with signals that do what they do by default, and with these variables
 * in its environment. It is what `setsid env --default-signal NAME=VALUE... PROGRAM` is, in one program that needs no
 * library: both of those have to be loaded and linked, which takes longer than all else that starting a process takes; and
 * an image's `env` may not know of signals, or there may be none. Shells leave what they start in the background with
 * SIGINT and SIGQUIT ignored for good, so something has to undo that.
 *
 * With -w it starts that as a process of its own, and is its watcher, as `watch` in keeper.sh is, which costs two more forks
 * of a shell: it tells the keeper, on descriptor 3, and the daemon, on 4, of the process ID's start and end. One that ends
 * within so many MILLISECONDS is told of once, which spares everybody else from being woken twice. SIGUSR1 says that no more
 * input will come: descriptor 6 keeps it open until then.
 *
 * Ends with 127 when there is no such program, 126 when it cannot be run, 125 when it was called wrongly; with CODE for -e.
 *
 * scripts/build-leader makes leader.x86_64 and leader.aarch64 of this, which are what is installed.
 */

typedef unsigned long word;

enum { NOENT = -2, INTR = -4, NOEXEC = -8, ACCES = -13, NOTDIR = -20 }; /* what the kernel answers */
enum { SIGNALS = 31, USR1 = 10, CHLD = 17, PATH_BYTES = 4096, LINE_BYTES = 256, CLOSE_RANGE = 436 };
enum { KEEPER = 3, EXITS = 4, INPUT = 6, DESCRIPTORS = 64 };

#if defined(__x86_64__)
enum { WRITE = 1, CLOSE = 3, SIGACTION = 13, SIGPROCMASK = 14, CLONE = 56, EXECVE = 59, EXIT = 60, WAIT4 = 61, SETSID = 112,
       SIGTIMEDWAIT = 128 };

static long call(long number, long first, long second, long third, long fourth) {
	register long r10 __asm__("r10") = fourth;
	long answer;
	__asm__ volatile("syscall"
	                 : "=a"(answer)
	                 : "a"(number), "D"(first), "S"(second), "d"(third), "r"(r10)
	                 : "rcx", "r11", "memory");
	return answer;
}

__asm__(".globl _start\n_start:\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall lead\n");
#elif defined(__aarch64__)
enum { CLOSE = 57, WRITE = 64, EXIT = 93, SIGACTION = 134, SIGPROCMASK = 135, SIGTIMEDWAIT = 137, SETSID = 157, CLONE = 220,
       EXECVE = 221, WAIT4 = 260 };

static long call(long number, long first, long second, long third, long fourth) {
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = first;
	register long x1 __asm__("x1") = second;
	register long x2 __asm__("x2") = third;
	register long x3 __asm__("x3") = fourth;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}

__asm__(".globl _start\n_start:\n\tmov x0, sp\n\tbl lead\n");
#else
#error "the system calls of this machine are not known here"
#endif

static void leave(int code) {
	for (;;)
		call(EXIT, code, 0, 0, 0);
}

static long length(const char *text) {
	long bytes = 0;
	while (text[bytes])
		bytes++;
	return bytes;
}

static void say(const char *text) { call(WRITE, 2, (long)text, length(text), 0); }

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

/* The environment: the settings, and what there is that they do not replace. `into` has room for all. */
static void set(char **settings, char **end, char **there, char **into) {
	for (char **setting = settings; setting < end; setting++)
		*into++ = *setting;
	for (; *there; there++) {
		int replaced = 0;
		for (char **setting = settings; setting < end && !replaced; setting++)
			replaced = same_name(*setting, *there);
		if (!replaced)
			*into++ = *there;
	}
	*into = 0;
}

/* Be the program at `path`; a text without a first line that says what runs it is run by the shell, as everywhere. The word
 * before `words` may be overwritten: it was ours. Comes back only with an error. */
static long become(char *path, char **words, char **environment) {
	long error = call(EXECVE, (long)path, (long)words, (long)environment, 0);
	if (error == NOEXEC) {
		char *called = words[0];
		words[-1] = "sh";
		words[0] = path;
		error = call(EXECVE, (long)"/bin/sh", (long)(words - 1), (long)environment, 0);
		words[0] = called;
	}
	return error;
}

/* The same for a program that is looked for in the directories of PATH. */
static long become_found(char **words, char **environment) {
	char place[PATH_BYTES], *path = "/usr/local/bin:/usr/bin:/bin";
	long name = length(words[0]), error = NOENT;
	for (char **variable = environment; *variable; variable++)
		if (same_name("PATH=", *variable))
			path = *variable + 5;
	for (;; path++) {
		long used = 0;
		for (; *path && *path != ':'; path++)
			if (used < PATH_BYTES)
				place[used++] = *path;
		if (used + name + 2 <= PATH_BYTES) {
			if (used)
				place[used++] = '/';
			for (long i = 0; i <= name; i++)
				place[used + i] = words[0][i];
			long now = become(place, words, environment);
			if (now != NOENT && now != NOTDIR)
				error = now;
			if (now != NOENT && now != NOTDIR && now != ACCES)
				return error;
		}
		if (!*path)
			return error;
	}
}

/* What is told of a process is put together here, and written at once. */
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

static void tell(int descriptor, struct line *line) {
	call(WRITE, descriptor, (long)line->text, line->used, 0);
	line->used = 0;
}

/* "ID +PID" or "ID CODE" for the daemon; "pid ID PID" or "done ID CODE" for the keeper. */
static void add_told(struct line *line, const char *verb, const char *id, const char *sign, long number) {
	add(line, verb);
	add(line, id);
	add(line, sign);
	add_number(line, number);
	add(line, "\n");
}

static long number_of(const char *text) {
	long number = 0;
	for (; *text >= '0' && *text <= '9' && number < 1000000; text++)
		number = number * 10 + *text - '0';
	return number;
}

static void let_input_end(int signal) {
	(void)signal;
	call(CLOSE, INPUT, 0, 0, 0);
}

extern void come_back(void); /* from the handler of a signal */
#if defined(__x86_64__)
__asm__(".globl come_back\ncome_back:\n\tmov $15, %eax\n\tsyscall\n");
enum { RESTORER = 0x04000000 };
#else
__asm__(".globl come_back\ncome_back:\n\tmov x8, #139\n\tsvc 0\n");
enum { RESTORER = 0 };
#endif

/* struct sigaction, as the kernel has it. */
struct action {
	void (*handler)(int);
	word flags;
	void (*restorer)(void);
	word mask;
};

static void run(char **program, char **environment) {
	char *slash = *program;
	while (*slash && *slash != '/')
		slash++;
	long error = !**program ? NOENT : *slash ? become(*program, program, environment) : become_found(program, environment);
	say(*program);
	say(error == NOENT || error == NOTDIR ? ": not found\n" : error == ACCES ? ": permission denied\n" : ": cannot be run\n");
	leave(error == NOENT || error == NOTDIR ? 127 : 126);
}

/* A process that is started has no descriptors but its three, and every signal does what it does by default. */
static void begin(int apart) {
	struct action none = {0, 0, 0, 0};
	word mask = 0;
	if (apart)
		call(SETSID, 0, 0, 0, 0); /* refused to who is a leader already */
	for (long signal = 1; signal <= SIGNALS; signal++)
		call(SIGACTION, signal, (long)&none, 0, 8);
	call(SIGPROCMASK, 2, (long)&mask, 0, 8);
}

static void close_others(void) {
	if (call(CLOSE_RANGE, 3, ~0U, 0, 0) >= 0)
		return;
	for (long descriptor = 3; descriptor < DESCRIPTORS; descriptor++)
		call(CLOSE, descriptor, 0, 0, 0);
}

static void watch(const char *id, long milliseconds, char **program, char **environment) {
	struct line told;
	told.used = 0;
	struct action usr1 = {let_input_end, RESTORER, come_back, 0}, none = {0, 0, 0, 0};
	word child_signal = 1UL << (CHLD - 1);
	call(SIGACTION, CHLD, (long)&none, 0, 8);
	call(SIGACTION, USR1, (long)&usr1, 0, 8);
	call(SIGPROCMASK, 0, (long)&child_signal, 0, 8);
	long pid = call(CLONE, CHLD, 0, 0, 0);
	if (pid == 0) {
		begin(1);
		close_others();
		run(program, environment);
	}
	if (pid < 0) {
		add(&told, id);
		add(&told, " none\n");
		tell(EXITS, &told);
		add(&told, "done ");
		add(&told, id);
		add(&told, "\n");
		tell(KEEPER, &told);
		leave(0);
	}
	int status = 0, announced = 0;
	long ended = 0;
	if (milliseconds) {
		long time[2] = {milliseconds / 1000, milliseconds % 1000 * 1000000};
		call(SIGTIMEDWAIT, (long)&child_signal, 0, (long)time, 8);
		ended = call(WAIT4, pid, (long)&status, 1, 0);
	}
	if (ended != pid) {
		add_told(&told, "pid ", id, " ", pid);
		tell(KEEPER, &told); /* first, so that it knows of whatever the daemon may ask it about */
		add_told(&told, "", id, " +", pid);
		tell(EXITS, &told);
		announced = 1;
		while (call(WAIT4, pid, (long)&status, 0, 0) == INTR)
			;
	}
	long code = status & 127 ? 128 + (status & 127) : status >> 8 & 255;
	if (!announced)
		add_told(&told, "", id, " +", pid);
	add_told(&told, "", id, " ", code);
	tell(EXITS, &told);
	if (!announced)
		add_told(&told, "pid ", id, " ", pid);
	add_told(&told, "done ", id, " ", code);
	tell(KEEPER, &told);
	leave(0);
}

__attribute__((used)) void lead(char **stack) {
	long count = (long)stack[0];
	char **words = stack + 1, **there = words + count + 1;
	if (count < 3 || words[1][0] != '-')
		leave(125);
	char how = words[1][1];
	if (how == 'e')
		leave(number_of(words[2]));
	char **settings = words + (how == 'w' ? 4 : 2), **program = settings;
	if (program > words + count)
		leave(125);
	while (*program && name_of(*program) >= 0)
		program++;
	if (!*program)
		leave(125);
	long variables = 0;
	while (there[variables])
		variables++;
	char *environment[variables + count + 1];
	set(settings, program, there, environment);
	if (how == 'w')
		watch(words[2], number_of(words[3]), program, environment);
	begin(how == 's');
	run(program, environment);
}
