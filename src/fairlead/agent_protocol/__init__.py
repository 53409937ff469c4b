"""Protocol between servers and agents, imported by both: messages, reports, slice lines and enrolment."""
