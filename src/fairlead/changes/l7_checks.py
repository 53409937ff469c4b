"""Checks of L7 policies and their rules."""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import Enum, auto

from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.l7 import L7Comparison, L7Policy, L7Rule, L7RuleType
from fairlead.model.documents.sizes import MAX_L7RULES

COMPARISONS: Mapping[L7RuleType, Set[L7Comparison]] = {
    **dict.fromkeys(L7RuleType, frozenset(L7Comparison)),
    L7RuleType.FILE_TYPE: {L7Comparison.EQUAL_TO, L7Comparison.REGEX},
    L7RuleType.SSL_CONN_HAS_CERT: {L7Comparison.EQUAL_TO},
    L7RuleType.SSL_VERIFY_RESULT: {L7Comparison.EQUAL_TO},
}
"""Comparisons allowed for each type of rule."""
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""Name of a header or cookie (RFC 9110, section 5.6.2; RFC 6265, section 4.1.1)."""
_COOKIE_VALUE = re.compile(r"[!-~]+")
_HEADER_VALUE = re.compile(r"[!-~]+|\"[\t -~]*\"")
"""Visible characters, or a quoted string that may contain blanks (RFC 9110, section 5.6.4)."""
_DN_FIELD = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
"""Name of an attribute of a distinguished name (RFC 4512, section 1.4)."""


class RuleProblem(Enum):
    NO_VALUE = auto()
    NO_KEY = auto()
    BAD_KEY = auto()
    BAD_VALUE = auto()
    """The value has characters that no header, cookie or path can have."""
    BAD_COMPARISON = auto()
    BAD_EXPRESSION = auto()
    NO_FIELD_OR_VALUE = auto()
    BAD_FIELD = auto()
    KEY_NOT_USED = auto()
    NOT_TRUE = auto()
    """The only allowed value is true."""
    NOT_A_NUMBER = auto()
    ONLY_EQUAL = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidRule(Refusal):
    problem: RuleProblem
    rule: L7Rule
    reason: str = ""
    """Error message for an invalid regular expression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyRules(Refusal):
    policy_id: str
    most: int


def check_policy(old: L7Policy | None, policy: L7Policy) -> None:
    """Check a new or changed policy. Raises Refused."""
    known = {rule.id: rule for rule in old.rules} if old else {}
    for rule in policy.rules:
        if rule is not known.get(rule.id):
            check_rule(rule)
    if len(policy.rules) > MAX_L7RULES:
        raise Refused(TooManyRules(policy_id=policy.id, most=MAX_L7RULES))


def check_rule(rule: L7Rule) -> None:
    """Check a rule. Raises Refused."""
    problem = _problem(rule)
    if problem is not None:
        raise Refused(problem if isinstance(problem, InvalidRule) else InvalidRule(problem=problem, rule=rule))


def _problem(rule: L7Rule) -> RuleProblem | InvalidRule | None:
    if not rule.value:
        return RuleProblem.NO_VALUE
    match rule.type:
        case L7RuleType.HEADER | L7RuleType.COOKIE:
            if not rule.key:
                return RuleProblem.NO_KEY
            if not _TOKEN.fullmatch(rule.key):
                return RuleProblem.BAD_KEY
            return _wrong_value(rule, _COOKIE_VALUE if rule.type is L7RuleType.COOKIE else _HEADER_VALUE)
        case L7RuleType.FILE_TYPE if rule.compare_type not in COMPARISONS[rule.type]:
            return RuleProblem.BAD_COMPARISON
        case L7RuleType.HOST_NAME | L7RuleType.PATH | L7RuleType.FILE_TYPE:
            return _wrong_value(rule, _HEADER_VALUE)
        case L7RuleType.SSL_DN_FIELD:
            return _wrong_field(rule)
        case L7RuleType.SSL_CONN_HAS_CERT | L7RuleType.SSL_VERIFY_RESULT:
            return _wrong_certificate(rule)


def _wrong_value(rule: L7Rule, allowed: re.Pattern[str]) -> RuleProblem | InvalidRule | None:
    if rule.compare_type is L7Comparison.REGEX:
        return _wrong_expression(rule)
    return None if allowed.fullmatch(rule.value) else RuleProblem.BAD_VALUE


def _wrong_expression(rule: L7Rule) -> InvalidRule | None:
    try:
        re.compile(rule.value)
    except (re.error, OverflowError, RecursionError) as error:
        return InvalidRule(problem=RuleProblem.BAD_EXPRESSION, rule=rule, reason=str(error))
    return None


def _wrong_field(rule: L7Rule) -> RuleProblem | InvalidRule | None:
    if not rule.key:
        return RuleProblem.NO_FIELD_OR_VALUE
    if not _DN_FIELD.fullmatch(rule.key):
        return RuleProblem.BAD_FIELD
    return _wrong_expression(rule) if rule.compare_type is L7Comparison.REGEX else None


def _wrong_certificate(rule: L7Rule) -> RuleProblem | None:
    if rule.key:
        return RuleProblem.KEY_NOT_USED
    if rule.type is L7RuleType.SSL_CONN_HAS_CERT and rule.value.lower() != "true":
        return RuleProblem.NOT_TRUE
    if rule.type is L7RuleType.SSL_VERIFY_RESULT and not (rule.value.isascii() and rule.value.isdecimal()):
        return RuleProblem.NOT_A_NUMBER
    return RuleProblem.ONLY_EQUAL if rule.compare_type not in COMPARISONS[rule.type] else None
