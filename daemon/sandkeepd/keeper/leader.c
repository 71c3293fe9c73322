/* leader -s|- [NAME=VALUE...] PROGRAM [ARGUMENT...]
 *
 * Becomes PROGRAM, in a session of its own with -s, with signals that do what they do by default, and with these variables
 * in its environment. It is what `setsid env --default-signal NAME=VALUE... PROGRAM` is, in one program that needs no
 * library: both of those have to be loaded and linked, which takes longer than all else that starting a process takes; and
 * an image's `env` may not know of signals, or there may be none. Shells leave what they start in the background with
 * SIGINT and SIGQUIT ignored for good, so something has to undo that.
 *
 * Ends with 127 when there is no such program, 126 when it cannot be run, 125 when it was called wrongly.
 *
 * scripts/build-leader makes leader.x86_64 and leader.aarch64 of this, which are what is installed.
 */

enum { NOENT = -2, NOEXEC = -8, ACCES = -13, NOTDIR = -20 }; /* what the kernel answers */
enum { SIGNALS = 31, PATH_BYTES = 4096 };

#if defined(__x86_64__)
enum { WRITE = 1, SIGACTION = 13, EXECVE = 59, EXIT = 60, SETSID = 112 };

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
enum { WRITE = 64, SIGACTION = 134, EXECVE = 221, EXIT = 93, SETSID = 157 };

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

__attribute__((used)) void lead(char **stack) {
	long count = (long)stack[0];
	char **words = stack + 1, **there = words + count + 1;
	long none[4] = {0, 0, 0, 0}; /* struct sigaction: SIG_DFL, and nothing else */
	if (count < 3 || words[1][0] != '-')
		leave(125);
	if (words[1][1] == 's')
		call(SETSID, 0, 0, 0, 0); /* refused to who is a leader already */
	for (long signal = 1; signal <= SIGNALS; signal++)
		call(SIGACTION, signal, (long)none, 0, 8);
	char **program = words + 2;
	while (*program && name_of(*program) >= 0)
		program++;
	if (!*program)
		leave(125);
	long variables = 0;
	while (there[variables])
		variables++;
	char *environment[variables + count + 1];
	set(words + 2, program, there, environment);
	char *slash = *program;
	while (*slash && *slash != '/')
		slash++;
	long error = !**program ? NOENT : *slash ? become(*program, program, environment) : become_found(program, environment);
	say(*program);
	say(error == NOENT || error == NOTDIR ? ": not found\n" : error == ACCES ? ": permission denied\n" : ": cannot be run\n");
	leave(error == NOENT || error == NOTDIR ? 127 : 126);
}
