/*
 * Every exported function packs its arguments and calls dcgm_sim_call with its number: exports.c names them, the table of
 * calls in Go answers. What is not of DCGM has names of its own: the simulated NVML can be in the same process.
 */
#ifndef DCGM_SIM_DISPATCH_H
#define DCGM_SIM_DISPATCH_H

#include <stdint.h>

/* The most arguments that a function of DCGM has. */
#define DCGM_SIM_MAX_ARGS 7

int dcgm_sim_call(int function, uintptr_t *args);

/* Calls a dcgmFieldValueEntityEnumeration_f. */
int dcgm_sim_enumerate(void *callback, unsigned int group, unsigned int entity, void *values, int count, void *user);

/* Makes a thread that never ends. */
void dcgm_sim_leave_thread(void);

#define P void *
#define U unsigned int
#define L unsigned long long
#define D double
#define CALL(number, ...) \
	{ \
		uintptr_t args[DCGM_SIM_MAX_ARGS] = {__VA_ARGS__}; \
		return dcgm_sim_call(number, args); \
	}
/* No call looks at a fraction. */
#define W(a) ((uintptr_t)(long long)(a))
#define CALL0(n, name) int name(void) CALL(n, 0)
#define CALL1(n, name, A) int name(A a) CALL(n, W(a))
#define CALL2(n, name, A, B) int name(A a, B b) CALL(n, W(a), W(b))
#define CALL3(n, name, A, B, C) int name(A a, B b, C c) CALL(n, W(a), W(b), W(c))
#define CALL4(n, name, A, B, C, E) int name(A a, B b, C c, E d) CALL(n, W(a), W(b), W(c), W(d))
#define CALL5(n, name, A, B, C, E, F) int name(A a, B b, C c, E d, F e) CALL(n, W(a), W(b), W(c), W(d), W(e))
#define CALL6(n, name, A, B, C, E, F, G) \
	int name(A a, B b, C c, E d, F e, G f) CALL(n, W(a), W(b), W(c), W(d), W(e), W(f))
#define CALL7(n, name, A, B, C, E, F, G, H) \
	int name(A a, B b, C c, E d, F e, G f, H g) CALL(n, W(a), W(b), W(c), W(d), W(e), W(f), W(g))

#endif
