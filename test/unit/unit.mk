# What each unit test links with, one line a program:
#   test/unit/NAME_test: src/room/module.o
