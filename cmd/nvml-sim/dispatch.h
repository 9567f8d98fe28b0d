/*
 * Every exported function packs its arguments and calls sim_call with its number: exports.c names them, the table of
 * calls in Go answers.
 */
#ifndef SIM_DISPATCH_H
#define SIM_DISPATCH_H

#include <stdint.h>

/* The most arguments that a function of NVML has. */
#define SIM_MAX_ARGS 8

int sim_call(int function, uintptr_t *args);

/*
 * Handles are addresses in this array, which is never read or written: they are valid pointers of C, stay the same for
 * the life of the process, and encode what they stand for by their offset.
 */
#define SIM_HANDLES (6 * 4096 * 32 * 8)
extern char sim_handles[SIM_HANDLES];

#define P void *
#define U unsigned int
#define L unsigned long long
#define SIM_CALL(number, ...) \
	{ \
		uintptr_t args[SIM_MAX_ARGS] = {__VA_ARGS__}; \
		return sim_call(number, args); \
	}
#define W(a) ((uintptr_t)(a))
#define CALL0(n, name) int name(void) SIM_CALL(n, 0)
#define CALL1(n, name, A) int name(A a) SIM_CALL(n, W(a))
#define CALL2(n, name, A, B) int name(A a, B b) SIM_CALL(n, W(a), W(b))
#define CALL3(n, name, A, B, C) int name(A a, B b, C c) SIM_CALL(n, W(a), W(b), W(c))
#define CALL4(n, name, A, B, C, D) int name(A a, B b, C c, D d) SIM_CALL(n, W(a), W(b), W(c), W(d))
#define CALL5(n, name, A, B, C, D, E) int name(A a, B b, C c, D d, E e) SIM_CALL(n, W(a), W(b), W(c), W(d), W(e))
#define CALL6(n, name, A, B, C, D, E, F) \
	int name(A a, B b, C c, D d, E e, F f) SIM_CALL(n, W(a), W(b), W(c), W(d), W(e), W(f))

#endif
