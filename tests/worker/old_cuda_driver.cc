// Stands in for libcuda.so.1: a driver of 2018.

extern "C" {

int cuInit(unsigned) { return 0; }

int cuDriverGetVersion(int* version) {
  *version = 9020;
  return 0;
}

}  // extern "C"
