# Compiler flags, ccache and sanitizers for every target.
option(ROOTSTOCK_TESTS "Build unit and integration tests" ON)
option(ROOTSTOCK_ASSERTIONS "Keep assertions in optimised builds" OFF)
set(ROOTSTOCK_CUDA AUTO CACHE STRING "Build the CUDA backend: ON, OFF, or AUTO: where there is a toolkit")
set(ROOTSTOCK_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize takes them; empty for none")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

add_compile_options(-Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers)
# Line tables are enough for stack traces, and link in a tenth of the time of full debug info.
string(REPLACE "-g" "-g1" CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")
if(ROOTSTOCK_ASSERTIONS)
  string(REPLACE "-DNDEBUG" "" CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")
endif()
if(ROOTSTOCK_SANITIZE)
  # Headers and optimisation are most of what these builds cost. Their presets join the files of a
  # target (CMAKE_UNITY_BUILD: names in the unnamed namespaces of one target differ); here go
  # optimisation and those checks of undefined behaviour that cost most and that a crash shows too.
  string(REPLACE "-O2" "-O0" CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")
  add_compile_options(-fsanitize=${ROOTSTOCK_SANITIZE} -fno-sanitize=null,object-size,vptr
                      -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${ROOTSTOCK_SANITIZE})
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
