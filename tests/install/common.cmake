# What the install tests share: running commands, and projects outside the build tree.
cmake_minimum_required(VERSION 3.25)

# run(out COMMAND...): runs it and fails the test if it fails; its stdout in `out`.
function(run out)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE errors RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    string(REPLACE ";" " " command "${ARGN}")
    message(NOTICE "${output}\n${errors}")  # As it is: FATAL_ERROR would wrap its lines.
    message(FATAL_ERROR "this ended with ${result}: ${command}")
  endif()
  set(${out} "${output}" PARENT_SCOPE)
endfunction()

# A command with no more in its environment than a login has.
set(bare env -i PATH=/usr/local/bin:/usr/bin:/bin "HOME=$ENV{HOME}")

# configure(project [ARGS...]): configures HERE/<project> afresh in WORK/<project>.
function(configure project)
  file(REMOVE_RECURSE "${WORK}/${project}")
  run(output ${bare} "${CMAKE_COMMAND}" -S "${HERE}/${project}" -B "${WORK}/${project}" -G Ninja
    "-DCMAKE_MAKE_PROGRAM=${NINJA}" "-DCMAKE_CXX_COMPILER=${COMPILER}" -DCMAKE_BUILD_TYPE=Release
    ${ARGN})
endfunction()

function(build project)
  run(output ${bare} "${CMAKE_COMMAND}" --build "${WORK}/${project}" ${ARGN})
endfunction()

function(expect text pattern)
  if(NOT text MATCHES "${pattern}")
    message(NOTICE "${text}")
    message(FATAL_ERROR "expected /${pattern}/ in the text above")
  endif()
endfunction()
