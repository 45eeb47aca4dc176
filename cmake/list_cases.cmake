# Writes to OUTPUT one convoy_case() for each Catch2 case of BINARY.
execute_process(COMMAND "${BINARY}" --list-test-names-only
  OUTPUT_VARIABLE names ERROR_VARIABLE errors RESULT_VARIABLE result)
# Catch2 v2 returns the number of cases, v3 returns 0; a signal is a word.
if(NOT result MATCHES "^[0-9]+$")
  message(FATAL_ERROR "${BINARY} could not list its cases: ${result}\n${errors}")
endif()
string(REGEX REPLACE "\n+$" "" names "${names}")
if(names MATCHES "^$")
  message(FATAL_ERROR "${BINARY} has no cases\n${errors}")
endif()
if(names MATCHES "[;\\\\]" OR names MATCHES "]==]")
  message(FATAL_ERROR "${BINARY}: a case name must not contain ';', '\\' or ']==]'")
endif()

set(text "set(convoy_binary [==[${BINARY}]==])\n")
# Line by line without making a CMake list of it, where brackets have a meaning.
string(APPEND names "\n")
while(NOT names STREQUAL "")
  string(FIND "${names}" "\n" end)
  string(SUBSTRING "${names}" 0 ${end} name)
  math(EXPR next "${end} + 1")
  string(SUBSTRING "${names}" ${next} -1 names)
  # Characters that mean something in a Catch2 test specification.
  string(REGEX REPLACE "([][,\"*])" "\\\\\\1" spec "${name}")
  string(APPEND text "convoy_case([==[${name}]==] [==[${spec}]==])\n")
endwhile()
file(WRITE "${OUTPUT}" "${text}")
