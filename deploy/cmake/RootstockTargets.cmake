# rootstock_library(NAME SOURCES a.cc … DEPS lib …)
#   One library a folder; includes are relative to the project's root. A folder with headers only gives no SOURCES.
# rootstock_binary(NAME SOURCES main.cc … DEPS lib …)
# rootstock_test(NAME SOURCES a_test.cc … DEPS lib … [SANITIZED asan tsan] [TIMEOUT seconds] [ARGS …])
#   SANITIZED: presets that build and run it too: loaders, tokenizer, scheduler, engine and memory;
#   tsan where several threads meet.
# rootstock_mpi_run(NAME RANKS)
#   Runs a rootstock_test's binary once more, as RANKS processes under mpirun.
# rootstock_cuda_library(NAME SOURCES a.cu b.cc … DEPS lib …)
#   Kernels and their launchers; call it only if(ROOTSTOCK_WITH_CUDA).
# rootstock_gpu_test(NAME SOURCES a_test.cu … DEPS lib …)
#   Built wherever there is a toolkit, run (ctest label gpu) where there is a GPU.
# rootstock_gpus_test(NAME RANKS SOURCES a_test.cc … DEPS lib …)
#   Built as a GPU test is; run (ctest label gpus) as RANKS processes under mpirun where there are as
#   many GPUs. Has a main of its own, which calls MPI_Init.
# rootstock_ranks_test(NAME "2;8" SOURCES a_test.cc … DEPS lib …)
#   The same, for each number of processes, where there is any GPU (label gpu): they may share it.
# rootstock_gpu_bench(NAME SOURCES a_bench.cu … DEPS lib …)
#   Built as a GPU test is, beside them; run by hand.
# rootstock_python_test(NAME FILE.py [TIMEOUT seconds] [ARGS …])
#   Runs a script, or the unittest cases of a *_test.py in its own folder, with the tests' Python
#   environment when there is one, else with the system's.

add_custom_target(sanitized_tests)
set(ROOTSTOCK_SANITIZER_PRESET asan)
if(ROOTSTOCK_SANITIZE STREQUAL "thread")
  set(ROOTSTOCK_SANITIZER_PRESET tsan)
endif()

# Tests may run as root and beside one another on few cores; Open MPI wants to be told so.
set(ROOTSTOCK_TEST_ENVIRONMENT
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
    ROOTSTOCK_PROMTOOL=${PROJECT_SOURCE_DIR}/build/tools/promtool)

function(rootstock_library NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  if(ARG_SOURCES)
    add_library(${NAME} STATIC ${ARG_SOURCES})
    target_include_directories(${NAME} PUBLIC ${PROJECT_SOURCE_DIR})
    target_link_libraries(${NAME} PUBLIC ${ARG_DEPS})
  else()
    add_library(${NAME} INTERFACE)
    target_include_directories(${NAME} INTERFACE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${NAME} INTERFACE ${ARG_DEPS})
  endif()
endfunction()

function(rootstock_binary NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  target_include_directories(${NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${NAME} PRIVATE ${ARG_DEPS})
  install(TARGETS ${NAME})
endfunction()

function(rootstock_test NAME)
  if(NOT ROOTSTOCK_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;ARGS;SANITIZED" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  target_include_directories(${NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${NAME} PRIVATE ROOTSTOCK_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                             ROOTSTOCK_BINARY_DIR="${CMAKE_BINARY_DIR}")
  target_link_libraries(${NAME} PRIVATE ${ARG_DEPS} GTest::gmock_main)
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${NAME} COMMAND ${NAME} ${ARG_ARGS})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set_tests_properties(${NAME} PROPERTIES TIMEOUT ${ARG_TIMEOUT}
                       ENVIRONMENT "${ROOTSTOCK_TEST_ENVIRONMENT}")
  if(ROOTSTOCK_SANITIZER_PRESET IN_LIST ARG_SANITIZED)
    set_tests_properties(${NAME} PROPERTIES LABELS sanitized)
    if(ROOTSTOCK_SANITIZER_PRESET STREQUAL "tsan")
      set_property(TEST ${NAME} APPEND PROPERTY ENVIRONMENT
        "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp")
    endif()
    add_dependencies(sanitized_tests ${NAME})
  endif()
endfunction()

function(rootstock_cuda_library NAME)
  rootstock_library(${NAME} ${ARGN})
  target_link_libraries(${NAME} PUBLIC CUDA::cudart_static)
  target_compile_options(${NAME} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
endfunction()

# A binary beside the GPU tests; LIBRARIES beside the sources' DEPS.
macro(rootstock_gpu_binary NAME LIBRARIES)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  target_include_directories(${NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${NAME} PRIVATE ${ARG_DEPS} ${LIBRARIES})
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/gpu_tests)
endmacro()

function(rootstock_gpu_test NAME)
  if(NOT ROOTSTOCK_TESTS)
    return()
  endif()
  rootstock_gpu_binary(${NAME} GTest::gmock_main ${ARGN})
  add_test(NAME ${NAME} COMMAND ${NAME})
  # Some look at what the GPU has free: one test at a time, those of several ranks too.
  set_tests_properties(${NAME} PROPERTIES TIMEOUT 300 LABELS gpu RESOURCE_LOCK gpu)
endfunction()

function(rootstock_gpus_test NAME RANKS)
  if(NOT ROOTSTOCK_TESTS)
    return()
  endif()
  rootstock_gpu_binary(${NAME} GTest::gtest ${ARGN})
  add_test(NAME ${NAME}
           COMMAND ${MPIEXEC_EXECUTABLE} -np ${RANKS} --oversubscribe --bind-to none
                   $<TARGET_FILE:${NAME}>)
  set_tests_properties(${NAME} PROPERTIES TIMEOUT 300 LABELS gpus RESOURCE_LOCK gpu
                       ENVIRONMENT "${ROOTSTOCK_TEST_ENVIRONMENT}")
endfunction()

function(rootstock_ranks_test NAME SIZES)
  if(NOT ROOTSTOCK_TESTS)
    return()
  endif()
  rootstock_gpu_binary(${NAME} GTest::gtest ${ARGN})
  foreach(ranks IN LISTS SIZES)
    rootstock_mpi_run(${NAME} ${ranks})
    set_tests_properties(${NAME}_np${ranks} PROPERTIES TIMEOUT 300 LABELS gpu RESOURCE_LOCK gpu)
  endforeach()
endfunction()

function(rootstock_gpu_bench NAME)
  if(NOT ROOTSTOCK_TESTS)
    return()
  endif()
  rootstock_gpu_binary(${NAME} "" ${ARGN})
endfunction()

function(rootstock_mpi_run NAME RANKS)
  if(NOT ROOTSTOCK_TESTS)
    return()
  endif()
  add_test(NAME ${NAME}_np${RANKS}
           COMMAND ${MPIEXEC_EXECUTABLE} -np ${RANKS} --oversubscribe --bind-to none
                   --mca mpi_yield_when_idle 1 $<TARGET_FILE:${NAME}>)
  set_tests_properties(${NAME}_np${RANKS} PROPERTIES TIMEOUT 120
                       ENVIRONMENT "${ROOTSTOCK_TEST_ENVIRONMENT}")
endfunction()

function(rootstock_python_test NAME FILE)
  if(NOT ROOTSTOCK_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "ARGS" ${ARGN})
  set(python ${PROJECT_SOURCE_DIR}/build/venv/bin/python)
  if(NOT EXISTS ${python})
    set(python ${Python3_EXECUTABLE})
  endif()
  get_filename_component(path ${FILE} ABSOLUTE)
  get_filename_component(folder ${path} DIRECTORY)
  get_filename_component(stem ${path} NAME_WE)
  set(script ${path})
  if(stem MATCHES "_test$")
    set(script -m unittest ${stem})
  endif()
  add_test(NAME ${NAME} COMMAND ${python} ${script} ${ARG_ARGS} WORKING_DIRECTORY ${folder})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set_tests_properties(
    ${NAME} PROPERTIES TIMEOUT ${ARG_TIMEOUT}
    ENVIRONMENT "${ROOTSTOCK_TEST_ENVIRONMENT};ROOTSTOCK_BINARY_DIR=${CMAKE_BINARY_DIR}")
endfunction()
