/* Sandkeep's keeper: the first process of a sandbox. It takes requests, one a line, starts and signals processes, and tells
 * in OUT/exits, one line each, what became of them.
 *
 *   keeper IN OUT [FILE_BLOCKS [PROCESSES [ADDRESS_KIB]]]   requests come from standard input, a FIFO; says "ready"
 *   keeper -c IN OUT [...]                                  requests come from IN/.control; what fails is said in OUT/p/.start
 *   keeper -w IN OUT [...]                                  as -c; and who starts inotify in the sandbox gets it from `keeper -i`
 *   keeper -v IN OUT [...]                                  where calls of the kernel and copies of memory are dear, as in gVisor:
 *                                                           what it starts has its memory until that is a program
 *   keeper -p DIR [...]                                     in a pod: makes what it needs in DIR, in and out and tty, and serves
 *                                                           there, as -c does
 *   keeper -d DIR [...]                                     the same in the background, if none serves there yet
 *   keeper -r DIR                                           carries requests and journals of -p and -d over its standard input
 *                                                           and output: see relay.c
 *   keeper -x in|out PROGRAM [ARGUMENT...]                  runs PROGRAM with a pipe of data, 3, and one of control words, 4:
 *                                                           see piped.c
 *   keeper - [NAME=VALUE...] PROGRAM [ARGUMENT...]          becomes PROGRAM, with signals that do what they do by default
 *   keeper -m MASK FROM TO PROGRAM [ARGUMENT...]            on the host: runs PROGRAM, with that umask (decimal); when it ends
 *                                                           well, FROM is called TO, and nobody else is needed for that
 *   keeper -k SOCKET PID IMAGE FROM TO                      on the host: has the kernel of a gVisor sandbox, the process PID, save
 *                                                           itself into the new file IMAGE, as `runsc checkpoint` has; then as -m.
 *                                                           With 3 nothing was asked of it, with 1 it has said why it could not, or
 *                                                           has ended
 *
 * Requests. In TEXT a newline is \n and a backslash \\; a RECORD is a text of fields, each with a NUL after it: the
 * directory to start in, NAME=VALUE for the environment, an empty one, and the words of the command.
 *   run ID MODE MS [RECORD]  start a process, by the record or the one in IN/ID. What ends within MS milliseconds is told of
 *                   once, which spares the daemon from being woken twice. MODE is the kind of its standard input: none, file,
 *                   pipe; in or out: none, and IN/ID.data and IN/ID.control as descriptors 3 and 4; or tty: IN/ID is the
 *                   script of a shell then, `terminal.sh`, which speaks for itself. Where the code inside cannot open a FIFO
 *                   that is outside: fed, fed-in and fed-out for pipe, in and out
 *   more ID WHAT    there is more in the file IN/ID.WHAT, stdin, data or control, by which a process is fed: it is put into a
 *                   pipe of its own as that has room                end ID WHAT   no more will come there
 *   secret ID TEXT  NAME=VALUE for the process ID alone, with a NUL after it, or a piece of that; comes before its run
 *   share - TEXT    the same for every process that starts from now on
 *   kill ID SIGNAL [N]  signal the process's group, and say that it was N    eof ID   no more input will come
 *   check ID        say live, none, or how it ended     ask - ID...   say how these ended, if they did
 *   stuck ID        tell a terminal's script that its process was killed and stays, where the daemon cannot tell it
 *   sweep -         have what the code inside has stopped go on
 *   name ID NEW     from now on the process is called NEW, and its journals are; a terminal's script goes on to say ID
 *   pid ID PID.GROUP    from a terminal's script: started       done ID [CODE]   from one: its last line is written
 *
 * Where the code inside cannot open a FIFO that is outside, terminals have what only the inside sees: in the directory `tty`
 * beside OUT, in memory, is a FIFO ID.told, made and removed here, and tmux's socket ID.tmux.
 *
 * Answers: "ID +PID" started, "ID CODE" ended, "ID none" not started, "ID live", "ID lost", "ID ~N" signal N was sent, "ID <N"
 * it has been fed N bytes of its input or data.
 *
 * It needs no library and no shell: an image may have neither, what has to be linked takes longer to start than all else does,
 * and a shell forks twice for what is done here once. scripts/build-keeper makes keeper.x86_64 and keeper.aarch64 of this,
 * which are what is installed.
 */

#include "keeper.h"

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall begin\n");
#else
__asm__(".globl _start\n_start:\n\tmov x0, sp\n\tbl begin\n");
#endif

/* Compilers expect it to be there. */
void *memset(void *into, int byte, word bytes) {
	for (word i = 0; i < bytes; i++)
		((volatile char *)into)[i] = (char)byte;
	return into;
}

void *memcpy(void *into, const void *from, word bytes) {
	copy(into, from, (long)bytes);
	return into;
}

/* Becoming a program */

/* An environment that is put together: `used` variables, of which no two have a name in common. */
struct environment {
	char **variables;
	long used;
};

static void set(struct environment *environment, char *variable) {
	if (name_of(variable) < 0)
		return;
	for (long i = 0; i < environment->used; i++)
		if (same_name(environment->variables[i], variable))
			return;
	environment->variables[environment->used++] = variable;
	environment->variables[environment->used] = 0;
}

/* Whether all that belongs to it has come. */
static int whole(const struct store *store) { return !store->broken && (!store->used || !store->bytes[store->used - 1]); }

static void set_all(struct environment *environment, const struct store *store) {
	for (char *at = store->bytes; at < store->bytes + store->used; at += length(at) + 1)
		set(environment, at);
}

/* Be the program at `path`; a text without a first line that says what runs it is run by the shell, as everywhere. The word
 * before `words` may be overwritten: it was ours. Comes back only with an error. */
static long become(char *path, char **words, char **environment) {
	long error = call(EXECVE, (long)path, (long)words, (long)environment, 0, 0);
	if (error == NOEXEC) {
		char *called = words[0];
		words[-1] = "sh";
		words[0] = path;
		error = call(EXECVE, (long)"/bin/sh", (long)(words - 1), (long)environment, 0, 0);
		words[0] = called;
	}
	return error;
}

/* The same for a program that is looked for in the directories of the PATH among `where`. */
static long become_found(char **words, char **environment, char **where) {
	char place[PATH_BYTES], *path = "/usr/local/bin:/usr/bin:/bin";
	long name = length(words[0]), error = NOENT;
	for (char **variable = where; *variable; variable++)
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
			copy(place + used, words[0], name + 1);
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

static void fail(const char *what, long error) {
	int missing = error == NOENT || error == NOTDIR;
	say(what);
	say(missing ? ": not found\n" : error == ACCES ? ": permission denied\n" : ": cannot be run\n");
	leave(missing ? NOT_FOUND : CANNOT);
}

void run(char **program, char **environment, char **where) {
	char *slash = *program;
	while (*slash && *slash != '/')
		slash++;
	fail(*program,
	     !**program ? NOENT : *slash ? become(*program, program, environment) : become_found(program, environment, where));
}

/* `keeper -` */
static void be(char **words, char **there) {
	char **program = words;
	long variables = 0;
	while (*program && name_of(*program) >= 0)
		program++;
	if (!*program)
		leave(CALLED_WRONGLY);
	while (there[variables])
		variables++;
	char *room[variables + (program - words) + 1];
	struct environment environment = {room, 0};
	for (char **setting = words; setting < program; setting++)
		set(&environment, *setting);
	for (char **variable = there; *variable; variable++)
		set(&environment, *variable);
	room[environment.used] = 0;
	default_signals();
	run(program, room, room);
}

static void move(const char *from, const char *to) {
	leave(call(RENAMEAT, HERE, (long)from, HERE, (long)to, 0) < 0 ? CANNOT : 0);
}

/* `keeper -m`. What may be descriptor 3 is a lock, which is held until all is done, and not by what goes on then. */
static void move_after(char **words, char **there) {
	int status = 0;
	long ended;
	call(FCNTL, 3, 2, 1, 0, 0);
	call(UMASK, number_of(words[0]), 0, 0, 0, 0);
	long pid = call(CLONE, SIGCHLD, 0, 0, 0, 0);
	if (pid == 0)
		run(words + 3, there, there);
	do
		ended = pid < 0 ? pid : call(WAIT4, pid, (long)&status, 0, 0, 0);
	while (ended == INTR);
	if (ended < 0)
		leave(CANNOT);
	if (status)
		leave(status & 127 ? 128 + (status & 127) : status >> 8 & 255);
	move(words[1], words[2]);
}

/* sockaddr_un, and a message with one descriptor, as the kernel has them. */
struct address {
	unsigned short family;
	char path[SOCKET_BYTES];
};

struct piece {
	const void *bytes;
	word length;
};

struct passed {
	word length;
	int level, kind, descriptor;
};

struct message {
	void *name;
	int name_length;
	const struct piece *pieces;
	word count;
	const struct passed *control;
	word control_length;
	int flags;
};

/* Connect to an abstract socket, whose name ends in a NUL, as Go's unet has it. It has to be that process that listens: once
 * it is gone, anybody can have the name. */
static long reach(const char *name, int pid) {
	struct address address = {UNIX, {0}};
	int peer[3] = {0, 0, 0}, size = sizeof peer;
	long bytes = length(name);
	if (bytes + 2 > SOCKET_BYTES)
		return -1;
	copy(address.path + 1, name, bytes);
	long found = call(SOCKET, UNIX, STREAM | CLOEXEC, 0, 0, 0);
	if (found < 0 || call(CONNECT, found, (long)&address, 2 + bytes + 2, 0, 0) < 0)
		return -1;
	return call(GETSOCKOPT, found, 1, PEER, (long)peer, (long)&size) < 0 || peer[0] != pid ? -1 : found;
}

/* What it answers is {"success":true,...}, or has "err":"..." in it. */
static int is_well(long kernel) {
	static const char well[] = "{\"success\":true", why[] = "\"err\":\"";
	static char said[4096];
	long used = 0, bytes;
	while (used < (long)sizeof well - 1 &&
	       (bytes = call(READ, kernel, (long)(said + used), sizeof said - 1 - used, 0, 0)) != 0)
		if (bytes > 0)
			used += bytes;
		else if (bytes != INTR)
			break;
	if (starts(said, well))
		return 1;
	char *from = said;
	while (*from && !starts(from, why))
		from++;
	from += *from ? sizeof why - 1 : 0;
	char *to = from;
	while (*to && (*to != '"' || to[-1] == '\\'))
		to++;
	*to = 0;
	say(*from ? from : "its kernel has ended");
	say("\n");
	return 0;
}

/* `keeper -k`. The request and its answer are those of gVisor's pkg/urpc, and of SaveOpts in pkg/sentry/control/state.go. */
static void save_kernel(char **words) {
	static const char request[] = "{\"method\":\"containerManager.Checkpoint\",\"arg\":{\"key\":null,\"metadata\":null}}";
	call(FCNTL, 3, 2, 1, 0, 0);
	long kernel = reach(words[0], (int)number_of(words[1]));
	long image = kernel < 0 ? -1 : call(OPENAT, HERE, (long)words[2], RDWR | CREAT | EXCLUSIVE | CLOEXEC, 0600, 0);
	if (image < 0) {
		say(kernel < 0 ? "its kernel cannot be reached\n" : "the file cannot be made\n");
		leave(NOT_ASKED);
	}
	struct piece piece = {request, sizeof request - 1};
	struct passed passed = {16 + sizeof(int), 1, RIGHTS, (int)image};
	struct message message = {0, 0, &piece, 1, &passed, sizeof passed, 0};
	if (call(SENDMSG, kernel, (long)&message, NO_SIGNAL, 0, 0) != sizeof request - 1 || !is_well(kernel))
		leave(NOT_SAVED);
	move(words[3], words[4]);
}

/* What is known of the processes that run, and of the last that ended */

struct process {
	char id[ID_BYTES], was[ID_BYTES]; /* what its terminal's script calls it */
	char announced, terminal, doomed, gone;
	int pid, group; /* 0 while it is not known; a group of its own has the number of its process */
	int script;     /* the process of a terminal's script */
	int input;      /* holds a FIFO open: the daemon's death must not look like the end of the input */
	long due;       /* when it is to be told of, also if it has not ended, in milliseconds */
};

struct ended {
	char id[ID_BYTES];
	int pid, code;
};

static struct store table; /* of processes */
static long running, unannounced, departed;
static struct ended ended[REMEMBERED];
static long ends;
static struct store feeds; /* of what processes are fed */
static long fed;
static struct store shared, mine; /* secrets */
static int shares;                /* what is started has this memory until it is a program */
static struct store lent;         /* what it has taken of it, and is to be given back */
static char whose[ID_BYTES];
static char *in, *out, **inherited;
static struct { word soft, hard; } limits[LIMITS];
static int requests, answers, signals, nothing;
int serving = -1; /* the file whose lock says that a pod's keeper serves */
static long spares[2]; /* files without a name, for the next journals; -1 for none */

static struct process *process(long number) { return (struct process *)table.bytes + number; }

static struct process *find(const char *id) {
	for (long i = 0; i < running; i++)
		if (same(process(i)->id, id))
			return process(i);
	return 0;
}

/* The one whose terminal's script calls it so. */
static struct process *find_terminal(const char *was) {
	for (long i = 0; i < running; i++)
		if (process(i)->terminal && same(process(i)->was, was))
			return process(i);
	return 0;
}

static void answer(struct line *line) {
	call(WRITE, answers, (long)line->text, line->used, 0, 0); /* one short appending write: whole or absent */
	line->used = 0;
}

static void add_answer(struct line *line, const char *id, const char *sign, long number) {
	add(line, id);
	add(line, sign);
	if (number >= 0)
		add_number(line, number);
	add(line, "\n");
}

static void tell(const char *id, const char *sign, long number) {
	struct line line;
	line.used = 0;
	add_answer(&line, id, sign, number);
	answer(&line);
}

/* Put its start into the line, if it was not told before. */
static void announce(struct process *found, struct line *line) {
	if (found->announced)
		return;
	add_answer(line, found->id, " +", found->pid);
	found->announced = 1;
	unannounced--;
}

/* The last that ended are known for a while: the code inside can spoil the file of answers before the daemon has read it. */
static void note(const struct process *found, int code) {
	struct ended *place = &ended[ends++ % REMEMBERED];
	copy(place->id, found->id, ID_BYTES);
	place->pid = found->pid;
	place->code = code;
}

static void recall(const char *id) {
	struct line line;
	line.used = 0;
	for (long i = 0; i < REMEMBERED; i++)
		if (same(ended[i].id, id)) {
			add_answer(&line, id, " +", ended[i].pid);
			add_answer(&line, id, " ", ended[i].code);
			answer(&line);
			return;
		}
	tell(id, " none", -1);
}

static void end_feeds(const char *id);
static void remove_hidden(const char *id, const char *end);

static void forget(struct process *found) {
	shut(found->input);
	if (fed)
		end_feeds(found->id);
	if (found->terminal) {
		remove_hidden(found->was, ".told");
		remove_hidden(found->was, ".tmux");
		remove_hidden(found->id, ".tmux");
	}
	unannounced -= !found->announced;
	struct process *last = process(--running);
	if (found != last)
		copy(found, last, sizeof *last);
}

static void finish(struct process *found, int code) {
	struct line line;
	line.used = 0;
	announce(found, &line);
	add_answer(&line, found->id, " ", code);
	answer(&line);
	note(found, code);
	forget(found);
}

/* Starting */

/* The path of a file of its terminal's that only the inside sees, if there are such. */
static char *hidden_path(char *into, const char *id, const char *end) {
	char directory[PATH_BYTES];
	return path_of(into, path_of(directory, out, "..", "/tty"), id, end);
}

static void remove_hidden(const char *id, const char *end) {
	char path[2 * PATH_BYTES];
	call(UNLINKAT, HERE, (long)hidden_path(path, id, end), 0, 0, 0);
}

/* Making a file takes a file system longer than giving one a name, so two are made before they are needed. */
static void make_spares(void) {
	static int none;
	char directory[PATH_BYTES];
	path_of(directory, out, "p", "");
	for (int i = 0; i < 2 && !none; i++)
		if (spares[i] < 0) {
			spares[i] = open_at(directory, WRONLY | NAMELESS);
			none = spares[i] == NOTSUP || spares[i] == ISDIR;
		}
}

/* Give a spare its name. It gets none without /proc, or where something is in its place. */
static void name_spare(long *spare, const char *path) {
	struct line own;
	if (*spare < 0)
		return;
	own.used = 0;
	add(&own, "/proc/self/fd/");
	add_number(&own, *spare);
	own.text[own.used] = 0;
	call(LINKAT, HERE, (long)own.text, HERE, (long)path, FOLLOW);
	shut(*spare);
	*spare = -1;
}

/* Whoever is inside may have put something in its place that is no file; nothing is waited for. It is opened by its name
 * also when it was there before, so that its process sees that name among its descriptors. */
static long open_journal(char *path, const char *id, const char *end, long *spare) {
	char directory[PATH_BYTES];
	path_of(directory, out, "p", "");
	name_spare(spare, path_of(path, directory, id, end));
	long found = open_at(path, WRONLY | CREAT | APPEND | NONBLOCK | NOFOLLOW);
	if (found >= 0)
		call(FCNTL, found, 4, APPEND, 0, 0);
	return found;
}

/* A FIFO as the descriptor `as`, which is the next that is free. The first opening waits for nobody, as it has both
 * directions; the second is the one that stays. */
static void open_end(char *path, const char *id, const char *end, long flags, long as) {
	long both = open_at(path_of(path, in, id, end), RDWR), one = open_at(path, flags);
	if (both < 0 || one < 0)
		leave(CALLED_WRONGLY);
	shut(both);
	put(one, as + 2);
	shut(one);
	put(as + 2, as);
	shut(as + 2);
}

/* The record of a process from its file; answers its end. */
static char *read_record(char *path, const char *id, char **record) {
	long file = open_at(path_of(path, in, id, ""), RDONLY);
	long size = call(LSEEK, file, 0, SEEK_TO_END, 0, 0), done = 0;
	struct store store = {0, 0, 0, 0};
	if (file < 0 || size <= 0 || !make_room(&store, size))
		leave(CALLED_WRONGLY);
	lent = store;
	call(LSEEK, file, 0, 0, 0, 0);
	while (done < size) {
		long bytes = call(READ, file, (long)(store.bytes + done), size - done, 0, 0);
		if (bytes <= 0)
			leave(CALLED_WRONGLY);
		done += bytes;
	}
	shut(file);
	*record = store.bytes;
	return store.bytes + size;
}

/* In the new process, which may have the memory of this one: become what the record says. */
static void follow(char *record, char *end, const struct store *secrets) {
	if (record == end || end[-1])
		leave(CALLED_WRONGLY);
	long variables = 0;
	while (inherited[variables])
		variables++;
	long count = pieces(record, end), all = count + pieces(shared.bytes, shared.bytes + shared.used) + variables;
	char *room[all + pieces(secrets->bytes, secrets->bytes + secrets->used) + 1], *words[count + 2], **next = words + 1;
	struct environment environment = {room, 0};
	char *directory = record, *at = record + length(record) + 1;
	for (; at < end && *at; at += length(at) + 1)
		set(&environment, at);
	for (at++; at < end; at += length(at) + 1)
		*next++ = at;
	*next = 0;
	set_all(&environment, secrets);
	set_all(&environment, &shared);
	for (char **variable = inherited; *variable; variable++)
		set(&environment, *variable);
	room[environment.used] = 0;
	long error = *directory ? call(CHDIR, (long)directory, 0, 0, 0, 0) : 0;
	if (error < 0) {
		say(directory);
		say(error == ACCES ? ": permission denied\n" : ": not a directory\n");
		leave(CANNOT);
	}
	if (!words[1])
		leave(CALLED_WRONGLY);
	run(words + 1, room, room);
}

/* In the new process: a terminal's script, which finds its shell whatever its secrets are called. */
static void follow_script(char *path, const struct store *secrets) {
	long variables = 0, count = pieces(secrets->bytes, secrets->bytes + secrets->used);
	while (inherited[variables])
		variables++;
	char *room[count + pieces(shared.bytes, shared.bytes + shared.used) + variables + 1];
	char *words[] = {0, "sh", path, 0};
	struct environment environment = {room, 0};
	set_all(&environment, secrets);
	set_all(&environment, &shared);
	for (char **variable = inherited; *variable; variable++)
		set(&environment, *variable);
	room[environment.used] = 0;
	run(words + 1, room, inherited);
}

static void limit(long resource, word most) {
	word both[2] = {most, most};
	call(PRLIMIT, 0, resource, (long)both, 0, 0);
}

/* As the descriptors 3 and 4. Both are closed when a program begins; what is put is not. */
static void put_both(long third, long fourth) {
	third = call(FCNTL, third, DUP_CLOEXEC, FEEDS, 0, 0);
	fourth = call(FCNTL, fourth, DUP_CLOEXEC, FEEDS, 0, 0);
	if (third < 0 || fourth < 0)
		leave(CALLED_WRONGLY);
	put(third, 3);
	put(fourth, 4);
}

/* What a new process is to be. */
struct birth {
	const char *id, *mode;
	char *record, *end;
	const struct store *secrets;
	long input, stdout, stderr, data, control;
};

/* In the new process, which may have the memory of this one: it writes nothing there but `lent`. */
static void become_process(void *given) {
	const struct birth *birth = given;
	const char *id = birth->id, *mode = birth->mode;
	char path[2 * PATH_BYTES], *record = birth->record, *end = birth->end;
	word none = 0;
	call(SETSID, 0, 0, 0, 0, 0);
	handle(SIGINT, 0);
	handle(SIGXFSZ, 0);
	call(SIGPROCMASK, SETMASK, (long)&none, 0, 8, 0);
	put(birth->input, 0);
	put(birth->stdout, 1);
	put(birth->stderr, 2);
	call(PRLIMIT, 0, NOFILE, (long)&limits[NOFILE], 0, 0);
	if (limits[FSIZE].soft)
		limit(FSIZE, limits[FSIZE].soft);
	if (same(mode, "tty")) {
		call(FCNTL, requests, 2, 0, 0, 0); /* descriptors 3 and 4, which its script speaks on */
		call(FCNTL, answers, 2, 0, 0, 0);
		follow_script(path_of(path, in, id, ""), birth->secrets);
	}
	if (record == end)
		end = read_record(path, id, &record);
	if (same(mode, "in") || same(mode, "out")) {
		for (long descriptor = 3; descriptor <= birth->stderr; descriptor++)
			shut(descriptor);
		open_end(path, id, ".data", mode[0] == 'i' ? RDONLY : WRONLY, 3);
		open_end(path, id, ".control", RDONLY, 4);
	}
	if (birth->control >= 0)
		put_both(birth->data, birth->control);
	follow(record, end, birth->secrets);
}

/* Another process that shares this one's memory, and stops it, until it has become a program or ended. Its stack is below this
 * one's, of which nothing is in use there: of who calls this all lies above. */
__attribute__((noinline)) static long bear_sharing(struct birth *birth) {
	long pid = clone_onto(((word)__builtin_frame_address(0) - PATH_BYTES) & ~15UL, become_process, birth);
	if (lent.room)
		call(MUNMAP, (long)lent.bytes, lent.room, 0, 0, 0);
	lent.room = 0;
	return pid;
}

static long now(void) {
	long time[2] = {0, 0};
	call(CLOCK_GETTIME, MONOTONIC, (long)time, 0, 0, 0);
	return time[0] * 1000 + time[1] / 1000000;
}

static void forget_secrets(void) {
	for (long i = 0; i < mine.used; i++)
		mine.bytes[i] = 0;
	mine.used = mine.broken = whose[0] = 0;
}

/* Files outside that grow, each put into a pipe of its process's as that takes it */

struct feed {
	char id[ID_BYTES], what; /* s for its input, d for its data, c for what controls it */
	char more, over, full;   /* there may be more in the file; that will be all; the pipe has no room */
	int file, pipe;
	long fed;
};

static struct feed *feed(long number) { return (struct feed *)feeds.bytes + number; }

/* Answers the process's end of the pipe; -1 when there is none to be had. */
static long begin_feed(char *path, const char *id, const char *end) {
	int both[2];
	feeds.used = fed * sizeof(struct feed);
	long file = open_at(path_of(path, in, id, end), RDONLY);
	if (file < 0 || !make_room(&feeds, sizeof(struct feed)) || call(PIPE2, (long)both, CLOEXEC, 0, 0, 0) < 0) {
		shut(file);
		return -1;
	}
	call(FCNTL, both[1], 4, NONBLOCK, 0, 0);
	struct feed *made = feed(fed++);
	copy(made->id, id, length(id) + 1);
	made->what = end[1];
	made->more = 1;
	made->over = made->full = 0;
	made->file = (int)file;
	made->pipe = both[1];
	made->fed = 0;
	return both[0];
}

static void end_feed(struct feed *found) {
	struct feed *last = feed(--fed);
	shut(found->file);
	shut(found->pipe);
	if (found != last)
		copy(found, last, sizeof *last);
}

static void end_feeds(const char *id) {
	for (long i = fed; i-- > 0;)
		if (same(feed(i)->id, id))
			end_feed(feed(i));
}

/* Put into the pipe what it takes of what there is, and tell how much that is by now, if it has changed or was asked. */
static void pump(struct feed *found, int asked) {
	static char piece[FIRST_ROOM];
	long before = found->fed;
	found->full = 0;
	while (found->more) {
		long bytes = call(READ, found->file, (long)piece, sizeof piece, 0, 0);
		if (bytes <= 0) {
			found->more = 0;
			break;
		}
		long taken = call(WRITE, found->pipe, (long)piece, bytes, 0, 0);
		if (taken < 0 && taken != AGAIN && taken != INTR) {
			end_feed(found); /* nobody reads it any more */
			return;
		}
		found->fed += taken > 0 ? taken : 0;
		if (taken < bytes) {
			call(LSEEK, found->file, found->fed, 0, 0, 0);
			found->full = 1;
			break;
		}
	}
	if ((asked || found->fed != before) && found->what != 'c')
		tell(found->id, " <", found->fed);
	if (!found->more && found->over)
		end_feed(found);
}

static void take_more(const char *id, const char *what, int over) {
	for (long i = fed; i-- > 0;) {
		struct feed *found = feed(i);
		if (found->what == *what && same(found->id, id)) {
			found->more = 1;
			found->over |= over;
			pump(found, 1);
		}
	}
}

static void start(const char *id, const char *mode, long quick, char *record, char *end) {
	char path[2 * PATH_BYTES];
	long stdout = open_journal(path, id, ".stdout", &spares[0]), stderr = open_journal(path, id, ".stderr", &spares[1]);
	long hold = -1, input = nothing, data = -1, control = -1, none = -1;
	if (same(mode, "fed"))
		input = begin_feed(path, id, ".stdin");
	if (same(mode, "fed-in"))
		data = begin_feed(path, id, ".data");
	if (same(mode, "fed-out"))
		data = open_journal(path, id, ".data", &none);
	if (starts(mode, "fed-"))
		control = begin_feed(path, id, ".control");
	if (same(mode, "pipe"))
		hold = open_at(path_of(path, in, id, ".stdin"), RDWR);
	if (same(mode, "pipe") || same(mode, "file"))
		input = open_at(path_of(path, in, id, ".stdin"), RDONLY);
	if (same(mode, "tty"))
		call(MKNODAT, HERE, (long)hidden_path(path, id, ".told"), FIFO | 0600, 0, 0);
	int own = same(whose, id); /* others may ask for theirs in between */
	int ready = input >= 0 && stdout >= 0 && stderr >= 0 && whole(&shared) && (!own || whole(&mine));
	if (starts(mode, "fed-") && (data < 0 || control < 0))
		ready = 0;
	table.used = running * sizeof(struct process);
	static const struct store no_secrets;
	struct birth birth = {id, mode, record, end, own ? &mine : &no_secrets, input, stdout, stderr, data, control};
	long pid = -1;
	if (ready && make_room(&table, sizeof(struct process)))
		pid = shares ? bear_sharing(&birth) : call(CLONE, SIGCHLD, 0, 0, 0, 0);
	if (pid == 0)
		become_process(&birth);
	if (own)
		forget_secrets();
	shut(input == nothing ? -1 : input);
	shut(stdout);
	shut(stderr);
	shut(data);
	shut(control);
	if (pid < 0) {
		shut(hold);
		end_feeds(id);
		tell(id, " none", -1);
		return;
	}
	struct process *made = process(running++);
	copy(made->id, id, length(id) + 1);
	copy(made->was, id, length(id) + 1);
	made->terminal = same(mode, "tty");
	made->announced = made->terminal;
	made->doomed = made->gone = 0;
	made->pid = made->group = made->terminal ? 0 : (int)pid;
	made->script = made->terminal ? (int)pid : 0;
	made->input = (int)hold;
	made->due = quick ? now() + quick : 0;
	unannounced += !made->announced;
	if (!quick && !made->terminal) {
		struct line line;
		line.used = 0;
		announce(made, &line);
		answer(&line);
	}
}

/* Signals */

static long send(long pid, long signal) { return call(KILL, pid, signal, 0, 0, 0); }

static void signal_process(struct process *found, long signal) {
	if (found->pid <= 1)
		return;
	if (send(-found->pid, signal) < 0) /* it may not have become the leader of its group yet, or have none in a terminal */
		send(found->terminal && found->group > 1 ? -found->group : found->pid, signal);
}

/* A terminal's process that was killed before its pid was known is killed then; asked for again, its script is. */
static void kill_one(struct process *found, long signal) {
	if (found->pid || signal != SIGKILL) {
		signal_process(found, signal);
	} else {
		if (found->doomed)
			send(found->script, SIGKILL); /* held by the code inside before it could tell of its process */
		found->doomed = 1;
	}
}

static void go_on(struct process *found) {
	if (found->script)
		send(found->script, SIGCONT); /* one that the code inside has stopped could tell nothing */
}

/* Children */

static void reap(void) {
	int status;
	long pid;
	while ((pid = call(WAIT4, -1, (long)&status, NOHANG, 0, 0)) > 0)
		for (long i = 0; i < running; i++) {
			struct process *found = process(i);
			if (found->script == pid) {
				found->gone = 1;
				departed = 1;
				break;
			}
			if (!found->terminal && found->pid == pid) {
				finish(found, status & 127 ? 128 + (status & 127) : status >> 8 & 255);
				break;
			}
		}
}

/* A terminal whose script has gone without a last word, which would have been read by now: nobody can tell of its process any
 * more, so that is ended. */
static void end_lost(void) {
	departed = 0;
	for (long i = running; i-- > 0;)
		if (process(i)->gone) {
			signal_process(process(i), SIGKILL);
			tell(process(i)->id, " lost", -1);
			forget(process(i));
		}
}

/* Requests */

static int pid_of(const char *text) {
	long number = number_of(text);
	return number < 1L << 30 ? (int)number : 0;
}

static void take_pid(struct process *found, const char *numbers) {
	const char *group = numbers;
	while (*group && *group != '.')
		group++;
	found->pid = pid_of(numbers);
	found->group = *group ? pid_of(group + 1) : found->pid;
	if (found->doomed)
		signal_process(found, SIGKILL);
}

static void check(const char *id) {
	struct process *found = find(id);
	struct line line;
	if (!found) {
		recall(id);
		return;
	}
	go_on(found);
	line.used = 0;
	if (found->announced && found->pid)
		add_answer(&line, id, " +", found->pid);
	announce(found, &line);
	add_answer(&line, id, " live", -1);
	answer(&line);
}

static void take_kill(const char *id, char *rest) {
	struct process *found = find(id);
	long signal = number_of(next_word(&rest));
	if (!found) {
		recall(id);
		return;
	}
	kill_one(found, signal);
	if (*rest)
		tell(id, " ~", number_of(rest));
	go_on(found);
}

/* Its journals are called by its name; a terminal's socket is known by both. */
static void rename_process(struct process *found, const char *name) {
	static const char *const ends[] = {".stdout", ".stderr", ".data"};
	char directory[PATH_BYTES], from[2 * PATH_BYTES], to[2 * PATH_BYTES];
	path_of(directory, out, "p", "");
	for (int i = 0; i < 3; i++)
		call(RENAMEAT, HERE, (long)path_of(from, directory, found->id, ends[i]), HERE, (long)path_of(to, directory, name, ends[i]), 0);
	if (found->terminal)
		call(LINKAT, HERE, (long)hidden_path(from, found->was, ".tmux"), HERE, (long)hidden_path(to, name, ".tmux"), 0);
	if (found->terminal && !same(found->id, found->was))
		remove_hidden(found->id, ".tmux");
	for (long i = 0; i < fed; i++)
		if (same(feed(i)->id, found->id))
			copy(feed(i)->id, name, length(name) + 1);
	copy(found->id, name, length(name) + 1);
}

/* Its script knows what is to be done. */
static void tell_stuck(const struct process *found) {
	char path[2 * PATH_BYTES];
	long told = open_at(hidden_path(path, found->was, ".told"), WRONLY | NONBLOCK | NOFOLLOW);
	if (told >= 0)
		call(WRITE, told, (long)"stuck\n", 6, 0, 0);
	shut(told);
}

static void take_secret(const char *id, char *text, char *end) {
	if (!same(whose, id)) {
		forget_secrets();
		copy(whose, id, length(id) + 1);
	}
	keep(&mine, text, end);
}

/* One request, which ends at `end`, where there is a NUL. */
static void take(char *rest, char *end) {
	char *verb = next_word(&rest), *id = next_word(&rest);
	if (!is_id(id))
		return;
	struct process *found = find(id);
	if (same(verb, "run")) {
		char *mode = next_word(&rest);
		long quick = number_of(next_word(&rest));
		if (!found)
			start(id, mode, quick, rest, unescape(rest, end));
	} else if (same(verb, "secret")) {
		take_secret(id, rest, end);
	} else if (same(verb, "share")) {
		keep(&shared, rest, end);
	} else if (same(verb, "kill")) {
		take_kill(id, rest);
	} else if (same(verb, "check")) {
		check(id);
	} else if (same(verb, "ask")) {
		while (*rest) {
			char *next = next_word(&rest);
			if (is_id(next) && !find(next))
				recall(next);
		}
	} else if (same(verb, "sweep")) {
		for (long i = 0; i < running; i++)
			go_on(process(i));
	} else if (same(verb, "more") || same(verb, "end")) {
		take_more(id, rest, *verb == 'e');
	} else if (same(verb, "name") && found && is_id(rest) && !find(rest)) {
		rename_process(found, rest);
	} else if (same(verb, "stuck") && found && found->terminal) {
		tell_stuck(found);
	} else if (same(verb, "eof") && found) {
		shut(found->input);
		found->input = -1;
	} else if (same(verb, "pid") && (found = find_terminal(id))) {
		take_pid(found, rest);
	} else if (same(verb, "done") && (found = find_terminal(id))) {
		if (!same(found->id, found->was) && *rest >= '0' && *rest <= '9')
			tell(found->id, " ", number_of(rest)); /* what its script has told bears another name */
		if (*rest >= '0' && *rest <= '9')
			note(found, (int)number_of(rest));
		forget(found);
	}
}

static char buffer[REQUEST_BYTES + 1];
static int told; /* whether LISTENER is open */

/* Reads what there is, and takes the lines of it; a piece of one is kept for the next time. */
static void take_requests(void) {
	if (told)
		shut(LISTENER); /* whoever wants it has it before he asks for anything, and no code shall have it */
	told = 0;
	static long kept;
	long bytes = call(READ, requests, (long)(buffer + kept), REQUEST_BYTES - kept, 0, 0);
	if (bytes == INTR)
		return;
	if (bytes <= 0)
		leave(0); /* nobody can ask for anything any more */
	kept += bytes;
	char *line = buffer;
	for (char *at = buffer; at < buffer + kept; at++)
		if (*at == '\n') {
			*at = 0;
			take(line, at);
			line = at + 1;
		}
	kept = buffer + kept - line;
	if (kept == REQUEST_BYTES)
		kept = 0; /* no request is that long */
	copy(buffer, line, kept);
}

/* How long until the next process has to be told of, in milliseconds; -1 when none has. Those whose time it is are told of. */
static long tell_of_late(void) {
	long soonest = -1;
	if (!unannounced)
		return soonest;
	long time = now();
	struct line line;
	line.used = 0;
	for (long i = 0; i < running; i++) {
		struct process *found = process(i);
		if (found->announced)
			continue;
		if (found->due <= time) {
			announce(found, &line);
			answer(&line);
		} else if (soonest < 0 || found->due - time < soonest) {
			soonest = found->due - time;
		}
	}
	return soonest;
}

/* Those whose pipes have no room are waited for, a few at a time. */
static long poll_feeds(struct polled *polled) {
	long count = 0;
	for (long i = 0; i < fed && count < AT_ONCE; i++)
		if (feed(i)->full)
			polled[count++] = (struct polled){feed(i)->pipe, WRITABLE, 0};
	return count;
}

static void pump_those(const struct polled *polled, long count) {
	for (long n = 0; n < count; n++)
		for (long i = fed; polled[n].found && i-- > 0;)
			if (feed(i)->pipe == polled[n].descriptor) {
				pump(feed(i), 0);
				break;
			}
}

/* The number of links of a file; that of what `descriptor` is for an empty path. */
static long links(long descriptor, const char *path) {
	unsigned found[64]; /* struct statx; its fifth number is that of the links */
	long error = call(STATX, descriptor, (long)path, *path ? 0 : EMPTY_PATH, LINKS, (long)found);
	return error < 0 ? error : found[4];
}

/* A sandbox whose directory on the host was removed ends: no daemon finds it any more, and nobody else would end it. Its `in`
 * is a mount, whose directory stays for as long as it is mounted, without a link; without mounts it is gone, and not moved.
 * gVisor knows no links of that directory, but those of the FIFO of the requests, which nobody inside can remove. */
static void end_if_removed(void) {
	long left = serving >= 0 ? 1 : shares ? NOENT : links(HERE, in);
	if (left == NOENT)
		left = links(requests, "");
	if (left)
		return;
	for (long i = 0; i < running; i++)
		if (process(i)->group > 1)
			call(KILL, -process(i)->group, SIGKILL, 0, 0, 0);
	leave(0);
}

static void serve(void) {
	char told[128];
	long look[2] = {LOOK_S, 0}; /* the kernel writes down what is left of it */
	for (;;) {
		long wait = departed ? 0 : tell_of_late();
		long time[2] = {wait / 1000, wait % 1000 * 1000000};
		struct polled polled[2 + AT_ONCE] = {{requests, READABLE, 0}, {signals, READABLE, 0}};
		long full = poll_feeds(polled + 2);
		long came = call(PPOLL, (long)polled, 2 + full, (long)(wait < 0 ? look : time), 0, 8);
		if (wait < 0 && !came) {
			end_if_removed();
			look[0] = LOOK_S, look[1] = 0;
		}
		pump_those(polled + 2, full);
		if (polled[0].found)
			take_requests();
		else if (departed)
			end_lost();
		if (polled[1].found) { /* after the requests, so that what a script has said as it ended is read first */
			call(READ, signals, (long)told, sizeof told, 0, 0);
			reap();
			make_spares(); /* while the daemon is at work: it has been told */
		}
	}
}

/* The beginning */

static void drop(char **variables, const char *name) {
	char **into = variables;
	for (; *variables; variables++)
		if (!starts(*variables, name))
			*into++ = *variables;
	*into = 0;
}

static void hold_limits(char **words) {
	limit(CORE, 0);
	if (words[0] && *words[0])
		limits[FSIZE].soft = number_of(words[0]) * 512; /* of processes alone: the keeper has to be able to tell of them */
	if (words[0] && words[1] && *words[1])
		limit(NPROC, number_of(words[1]));
	if (words[0] && words[1] && words[2] && *words[2])
		limit(PRIVATE, number_of(words[2]) * 1024); /* not of the address space, of which Node and Java reserve more than they use */
	word most[2];
	call(PRLIMIT, 0, NOFILE, 0, (long)&limits[NOFILE], 0);
	most[0] = most[1] = limits[NOFILE].hard;
	call(PRLIMIT, 0, NOFILE, (long)most, 0, 0);
}

static long above(long descriptor) { return call(FCNTL, descriptor, DUP_CLOEXEC, 3, 0, 0); }

/* Its descriptors: 3 the requests, 4 the answers. What it was given beyond that is of no use to anybody inside. */
static void open_all(int by_name) {
	char path[2 * PATH_BYTES];
	if (by_name) {
		long said = open_at(path_of(path, out, "p/.start", ""), WRONLY | CREAT | TRUNC);
		put(said, 2);
		shut(said);
	}
	long control = by_name ? open_at(path_of(path, in, ".control", ""), RDWR) : above(0);
	long exits = open_at(path_of(path, out, "exits", ""), WRONLY | CREAT | APPEND);
	nothing = (int)open_at("/dev/null", RDWR);
	if (control < 0 || exits < 0 || nothing < 0) {
		say(control < 0 ? "its requests" : exits < 0 ? "its answers" : "/dev/null");
		say(" cannot be opened\n");
		leave(CALLED_WRONGLY);
	}
	requests = (int)control;
	answers = (int)exits;
}

/* The kernel counts inotify by user, and containers have users in common with each other and with the host. What it counts
 * for is whoever made the instance. So in a container a call that makes one is not carried out but told of, to a program on
 * the host that is in a user namespace with ceilings of its own, and hands over one of its instances. */

struct instruction {
	unsigned short code;
	unsigned char jump, jump_else;
	unsigned value;
};

/* What is read of a call, its number, kind of machine and arguments, and what it is answered. */
struct notice {
	word id;
	unsigned pid, flags;
	int number;
	unsigned machine;
	word place, arguments[6];
};

struct answer {
	word id;
	long value;
	int error;
	unsigned flags;
};

struct descriptor {
	word id;
	unsigned flags, source, as, its_flags;
};

/* Have starts of inotify told of, where no more code can do without. The descriptor LISTENER is by what, or /dev/full. */
static void have_inotify_told(void) {
	static const struct instruction filter[] = {
	    {0x20, 0, 0, 4}, /* the machine */
	    {0x15, 0, 4, (unsigned)NATIVE},
	    {0x20, 0, 0, 0}, /* the number of the call */
	    {0x54, 0, 0, ~0x40000000u}, /* without the bit of x32 */
	    {0x15, 5, 0, STARTS},
	    {0x15, 4, 3, STARTS_WITH},
	    {0x15, 0, 2, OTHER},
	    {0x20, 0, 0, 0},
	    {0x15, 1, 2, OTHER_STARTS},
	    {0x06, 0, 0, ALLOW},
	    {0x06, 0, 0, ASK},
	    {0x15, 0, 1, OTHER_STARTS_WITH},
	    {0x06, 0, 0, ASK},
	    {0x06, 0, 0, ALLOW},
	};
	struct {
		unsigned short length;
		const struct instruction *filter;
	} program = {sizeof filter / sizeof *filter, filter};
	long listener = call(SECCOMP, FILTER, NEW_LISTENER, (long)&program, 0, 0);
	if (listener < 0)
		listener = open_at("/dev/full", RDONLY);
	call(DUP3, listener, LISTENER, CLOEXEC, 0, 0);
	shut(listener);
}

static void hold_ceiling(char *word) {
	char path[LINE_BYTES] = "/proc/sys/user/";
	long name = name_of(word), before = length(path);
	if (name < 0 || before + name >= LINE_BYTES)
		leave(CALLED_WRONGLY);
	copy(path + before, word, name);
	long file = open_at(path, WRONLY);
	if (file < 0 || call(WRITE, file, (long)(word + name + 1), length(word + name + 1), 0, 0) < 0)
		leave(CANNOT);
	shut(file);
}

static void make_inotify(long listener, const struct notice *notice) {
	struct answer answer = {notice->id, 0, INVALID, 0};
	int number = notice->number & ~0x40000000;
	int with = notice->machine == (unsigned)NATIVE ? number == STARTS_WITH : number == OTHER_STARTS_WITH;
	word flags = with ? notice->arguments[0] & 0xffffffff : 0;
	if (!(flags & ~(word)(NONBLOCK | CLOEXEC))) {
		long made = call(INOTIFY_INIT1, (long)(flags & NONBLOCK) | CLOEXEC, 0, 0, 0, 0);
		struct descriptor given = {notice->id, SENT, (unsigned)made, 0, (unsigned)(flags & CLOEXEC)};
		long done = made < 0 ? made : call(IOCTL, listener, ADD_DESCRIPTOR, (long)&given, 0, 0);
		shut(made);
		if (done >= 0)
			return;
		answer.error = (int)done;
	}
	call(IOCTL, listener, SEND_ANSWER, (long)&answer, 0, 0);
}

static void serve_inotify(long listener) {
	struct {
		int descriptor;
		short wanted, found;
	} poll = {(int)listener, READABLE, 0};
	long pace[2] = {0, PACE_NS}; /* whoever asks without end takes no processor from others */
	for (;;) {
		struct notice notice;
		poll.found = 0;
		call(PPOLL, (long)&poll, 1, 0, 0, 8);
		if (poll.found & HUNG_UP)
			leave(0);
		memset(&notice, 0, sizeof notice);
		if (poll.found & READABLE && call(IOCTL, listener, RECEIVE_NOTICE, (long)&notice, 0, 0) >= 0)
			make_inotify(listener, &notice);
		call(PPOLL, 0, 0, (long)pace, 0, 8);
		pace[0] = 0, pace[1] = PACE_NS; /* the kernel writes down what was left */
	}
}

static void count_inotify(char **words) {
	long process = call(PIDFD_OPEN, number_of(words[0]), 0, 0, 0, 0);
	long listener = process < 0 ? process : call(PIDFD_GETFD, process, LISTENER, 0, 0, 0);
	shut(process);
	if (listener < 0 || call(UNSHARE, NEWUSER, 0, 0, 0, 0) < 0)
		leave(CANNOT);
	for (words++; *words; words++)
		hold_ceiling(*words);
	long pid = call(CLONE, SIGCHLD, 0, 0, 0, 0);
	if (pid)
		leave(pid < 0 ? CANNOT : 0);
	call(SETSID, 0, 0, 0, 0, 0);
	call(CHDIR, (long)"/", 0, 0, 0, 0);
	call(SETPRIORITY, 0, 0, LEAST, 0, 0);
	for (long descriptor = 0; descriptor < 64; descriptor++)
		if (descriptor != listener)
			shut(descriptor);
	serve_inotify(listener);
}

void keep_sandbox(char **words, int by_name) {
	word child = 1UL << (SIGCHLD - 1);
	word kept = child | 1UL << (SIGINT - 1) | 1UL << (SIGXFSZ - 1) | 1UL << (SIGPIPE - 1);
	in = words[0];
	out = words[1];
	spares[0] = spares[1] = -1;
	if (length(in) + ID_BYTES + 16 > PATH_BYTES || length(out) + ID_BYTES + 16 > PATH_BYTES)
		leave(CALLED_WRONGLY);
	/* Where calls are dear it is the first program of a kernel of its own: nobody has left it descriptors, or signals. */
	for (long descriptor = 3; descriptor < 64 && !shares; descriptor++)
		shut(descriptor);
	drop(inherited, "SANDKEEP_LOG="); /* it marks the first process, for the host to see */
	open_all(by_name);
	if (!shares)
		default_signals();
	handle(SIGINT, 1); /* what a terminal sends to all that were started there */
	handle(SIGXFSZ, 1);
	/* Ignored and not blocked, a signal that comes to a process before it has set itself up would be lost. */
	call(SIGPROCMASK, BLOCK, (long)&kept, 0, 8, 0);
	signals = (int)call(SIGNALFD, -1, (long)&child, 8, CLOEXEC | NONBLOCK, 0);
	if (signals < 0)
		leave(CALLED_WRONGLY);
	hold_limits(words + 2);
	call(UMASK, 022, 0, 0, 0, 0);
	if (told)
		have_inotify_told();
	if (!by_name)
		call(WRITE, 1, (long)"ready\n", 6, 0, 0);
	if (serving >= 0)
		call(FLOCK, serving, LOCK_SHARED, 0, 0, 0);
	for (long descriptor = 0; descriptor < 3; descriptor++)
		put(nothing, descriptor);
	make_spares();
	serve();
}

__attribute__((used)) void begin(char **stack) {
	long count = (long)stack[0];
	char **words = stack + 1;
	inherited = words + count + 1;
	if (count >= 2 && same(words[1], "-"))
		be(words + 2, inherited);
	if (count >= 6 && same(words[1], "-m"))
		move_after(words + 2, inherited);
	if (count == 7 && same(words[1], "-k"))
		save_kernel(words + 2);
	if (count >= 3 && same(words[1], "-i"))
		count_inotify(words + 2);
	if (count >= 3 && (same(words[1], "-p") || same(words[1], "-d")))
		keep_pod(words, words[1][1] == 'd');
	if (count == 3 && same(words[1], "-r"))
		relay(words[2]);
	if (count >= 4 && same(words[1], "-x"))
		run_piped(words + 2, inherited);
	told = count >= 2 && same(words[1], "-w");
	int by_name = told || (count >= 2 && same(words[1], "-c"));
	shares = count >= 2 && same(words[1], "-v");
	int options = by_name | shares;
	if (count < 3 + options || words[1 + options][0] == '-')
		leave(CALLED_WRONGLY);
	keep_sandbox(words + 1 + options, by_name);
}
