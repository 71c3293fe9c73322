/* What programs in gVisor sandboxes are started with besides their libraries: `statx` without a flag, AT_NO_AUTOMOUNT, that
 * means nothing where nothing is mounted by being looked at, and for which older gVisor refuses the call. Without this `ls` and
 * `stat` of today fail there. scripts/build-keeper makes statx.x86_64 and statx.aarch64 of it.
 */

enum { NO_AUTOMOUNT = 0x800 };

int *__errno_location(void);

#if defined(__x86_64__)
static long call(long number, long first, long second, long third, long fourth, long fifth) {
	register long r10 __asm__("r10") = fourth;
	register long r8 __asm__("r8") = fifth;
	long answer;
	__asm__ volatile("syscall" : "=a"(answer) : "a"(number), "D"(first), "S"(second), "d"(third), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
	return answer;
}
enum { STATX = 332 };
#elif defined(__aarch64__)
static long call(long number, long first, long second, long third, long fourth, long fifth) {
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = first;
	register long x1 __asm__("x1") = second;
	register long x2 __asm__("x2") = third;
	register long x3 __asm__("x3") = fourth;
	register long x4 __asm__("x4") = fifth;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
	return x0;
}
enum { STATX = 291 };
#else
#error "the system calls of this machine are not known here"
#endif

int statx(int directory, const char *path, int flags, unsigned mask, void *found) {
	long answer = call(STATX, directory, (long)path, flags & ~NO_AUTOMOUNT, mask, (long)found);
	if (answer >= 0)
		return (int)answer;
	*__errno_location() = (int)-answer;
	return -1;
}
