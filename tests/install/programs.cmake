# The installed programs start from another folder, with an empty environment.
include("${HERE}/common.cmake")
foreach(program IN ITEMS convoyrun train_gpt)
  execute_process(COMMAND ${bare} "${PREFIX}/bin/${program}" --version WORKING_DIRECTORY /
    OUTPUT_VARIABLE output ERROR_VARIABLE errors RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${program} --version ended with ${result}\n${errors}")
  endif()
  expect("${output}" "[0-9]+\\.[0-9]+\\.[0-9]+")
endforeach()
