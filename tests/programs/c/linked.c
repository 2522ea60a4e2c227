// A library linked against libcuda: `linked` returns the address to which the dynamic linker bound
// a name. The names come from the hook table of the preloaded library (-DNAMES), so that none is
// missing.
#include <stddef.h>
#include <string.h>

#define NAME(symbol) extern int symbol(void) __attribute__((weak));
NAMES
#undef NAME

static const struct {
    const char *name;
    int (*address)(void);
} table[] = {
#define NAME(symbol) {#symbol, symbol},
    NAMES};

void *linked(const char *name) {
    for (size_t at = 0; at < sizeof table / sizeof *table; at++)
        if (!strcmp(table[at].name, name))
            return (void *)table[at].address;
    return NULL;
}
