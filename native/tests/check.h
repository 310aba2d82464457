// Checks for the native tests: a failed check says where and ends the program with a code that ctest sees.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <string>
#include <unistd.h>

#define CHECK(condition)                                                                   \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition);   \
      _exit(1);                                                                            \
    }                                                                                      \
  } while (0)

#define CHECK_EQUAL(left, right)                                                                                   \
  do {                                                                                                             \
    auto check_left = (left);                                                                                      \
    auto check_right = (right);                                                                                    \
    if (!(check_left == check_right)) {                                                                            \
      std::fprintf(stderr, "%s:%d: check failed: %s == %s (%lld and %lld)\n", __FILE__, __LINE__, #left, #right,   \
                   static_cast<long long>(check_left), static_cast<long long>(check_right));                       \
      _exit(1);                                                                                                    \
    }                                                                                                              \
  } while (0)

// HVD_TEST_ONLY names the one test to run.
#define RUN(test)                         \
  do {                                    \
    const char *only = std::getenv("HVD_TEST_ONLY"); \
    if (only != nullptr && std::string(only) != #test) break; \
    std::printf("%s\n", #test);           \
    std::fflush(stdout);                  \
    test();                               \
  } while (0)
