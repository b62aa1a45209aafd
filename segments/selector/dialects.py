"""The three ways in which a SQL selector can be meant.

Source: apache/rocketmq, filter/src/main/java/org/apache/rocketmq/filter/parser/SelectorParser.jj;
rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_amqp_sql_lexer.xrl and
deps/rabbit/src/rabbit_amqp_sql_parser.yrl. Union, which joins the two, is ours.
"""

import re
from dataclasses import dataclass
from enum import StrEnum


class Dialect(StrEnum):
    """The grammar and the rules of comparison of a selector.

    UNION takes what either of the others takes and says clearly what it does not; ROCKETMQ and
    AMQP (RabbitMQ's SQL filter expressions) are for selectors that were written for them.
    """

    UNION = "union"
    ROCKETMQ = "rocketmq"
    AMQP = "amqp"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the lexer and the parser ask about a dialect.

    Attributes:
        token: a regular expression with one named group per kind of token.
        max_tokens: more are refused.
        reserved: words that cannot be identifiers, in upper case.
        upper_keywords: keywords are written in upper case.
        plain_name: what an identifier without brackets looks like.
    """

    token: re.Pattern[str]
    max_tokens: int
    reserved: frozenset[str]
    upper_keywords: bool
    plain_name: re.Pattern[str]


MAX_CHARACTERS = 4096
MAX_DEPTH = 64

_NOT_IN_WORD = r"(?![A-Za-z0-9_$])"
_UNION = rf"""
    (?P<space>   [ \t\n\r\f]+ | /\*[\s\S]*?\*/ )
  | (?P<comment> /\* | -- )
  | (?P<binary>  0[xX](?:[0-9A-Fa-f]{{2}})+ {_NOT_IN_WORD} )
  | (?P<float>   (?: (?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
                 {_NOT_IN_WORD} )
  | (?P<int>     [0-9]+[lL]? {_NOT_IN_WORD} )
  | (?P<number>  [0-9][A-Za-z0-9_$.]* )
  | (?P<text>    '(?:[^']|'')*' | "(?:[^"]|"")*" )
  | (?P<open>    ['"] )
  | (?P<name>    [A-Za-z_$][A-Za-z0-9_$]* )
  | (?P<bracket> \[(?:[^\[\]\x00-\x1f\x7f]|\[\[|\]\])+\] )
  | (?P<unclosed> \[ )
  | (?P<symbol>  <> | != | <= | >= | [=<>(),.+*/%-] )
"""
_AMQP = r"""
    (?P<space>   [ \t\n\r\f]+ )
  | (?P<binary>  0x(?:[0-9A-F]{2})+ (?![A-Za-z0-9_]) )
  | (?P<float>   [0-9]+\.[0-9]+(?:E[+-]?[0-9]+)? (?![A-Za-z0-9_]) )
  | (?P<int>     [0-9]+ (?![A-Za-z0-9_]) )
  | (?P<number>  [0-9][A-Za-z0-9_.]* )
  | (?P<text>    '(?:[^']|'')*' | "(?:[^"]|"")*" )
  | (?P<open>    ['"] )
  | (?P<name>    [A-Za-z][A-Za-z0-9_]* )
  | (?P<bracket> \[(?:[^\[\]\x00-\x1f\x7f]|\[\[|\]\])+\] )
  | (?P<unclosed> \[ )
  | (?P<symbol>  <> | != | <= | >= | [=<>(),.+*/%-] )
"""
_ROCKETMQ = r"""
    (?P<space>   [ \t\n\r\f]+ | /\*[\s\S]*?\*/ | --[^\r\n]*[\r\n] )
  | (?P<comment> /\* )
  | (?P<float>   (?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
  | (?P<int>     [1-9][0-9]*[lL]? | 0 )
  | (?P<text>    '(?:[^']|'')*' )
  | (?P<open>    ' )
  | (?P<name>    [A-Za-z_$][A-Za-z0-9_$]* )
  | (?P<symbol>  <> | <= | >= | [=<>(),+-] )
"""
_RESERVED = frozenset(["NOT", "AND", "OR", "IN", "TRUE", "FALSE", "NULL", "IS"])
_WORD = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*\Z")

GRAMMARS = {
    Dialect.UNION: Grammar(re.compile(_UNION, re.VERBOSE), 1024, _RESERVED, False, _WORD),
    Dialect.ROCKETMQ: Grammar(
        re.compile(_ROCKETMQ, re.VERBOSE),
        1024,
        _RESERVED | {"BETWEEN", "CONTAINS", "STARTSWITH", "ENDSWITH"},
        False,
        _WORD,
    ),
    Dialect.AMQP: Grammar(
        re.compile(_AMQP, re.VERBOSE),
        200,
        _RESERVED
        | frozenset(
            [
                "LIKE",
                "ESCAPE",
                "EXISTS",
                "NAN",
                "INF",
                "LOWER",
                "UPPER",
                "LEFT",
                "RIGHT",
                "SUBSTRING",
                "UTC",
                "DATE",
            ]
        ),
        True,
        re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z"),
    ),
}
