// A library with functions that have names of the driver's but are not the driver's.
int cuMemAlloc_v2(unsigned long *dptr, unsigned long size) { return dptr && size ? 77 : 78; }
int nvmlDeviceGetMemoryInfo(void *device, void *memory) { return device && memory ? 77 : 78; }
