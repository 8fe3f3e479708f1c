# doc/reference.md says what signatures and comments say.
use strict;
use warnings;

use File::Basename qw(dirname);
use OutboxCluster;
use PostgreSQL::Test::Utils qw(slurp_file);
use SqlReference;
use Test::More;

my $node = OutboxCluster->create('reference', preload => 0);
my @is = split /\n/, slurp_file(dirname(__FILE__) . '/../../doc/reference.md');
my @should_be = split /\n/, SqlReference::page(sub { $node->sql($_[0]) });
my ($first) = grep { ($is[$_] // '') ne ($should_be[$_] // '') } 0 .. ($#is > $#should_be ? $#is : $#should_be);
ok(!defined $first, 'doc/reference.md is as test/reference writes it')
  or diag('line ' . ($first + 1) . ': ' . ($is[$first] // '(none)') . "\nshould be: " . ($should_be[$first] // '(none)') . "\nWrite it with test/reference.");

done_testing();
