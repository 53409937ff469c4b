"""Octavia's functional tests that Fairlead does not pass, and those that are left out, each with its reason."""

from collections.abc import Iterator, Mapping

_LB, _GRAPH, _LISTENER = (
    "test_load_balancer.TestLoadBalancer",
    "test_load_balancer.TestLoadBalancerGraph",
    "test_listener.TestListener",
)
_POOL, _MEMBER, _MONITOR = "test_pool.TestPool", "test_member.TestMember", "test_health_monitor.TestHealthMonitor"
_POLICY, _RULE = "test_l7policy.TestL7Policy", "test_l7rule.TestL7Rule"


def _test_names(of: str, *names: str) -> Iterator[str]:
    return (f"{of}.test_{name}" for name in names)


_DELETED_IS_GONE = (
    "a deleted object is gone when DELETE has answered (404); Octavia shows PENDING_DELETE until its driver is done"
)
_NO_MONITOR = (
    "a member without a health monitor is NO_MONITOR; the test writes another operating status to the database"
)
_UNSUPPORTED = "QoS policies and security groups of VIPs are not supported (501)"
_SRIOV = "there are no SR-IOV ports: the flavor has no such key"
_CRL = "a revocation list is not compared with its authority"
_ADDRESS = "a VIP has an address of its subnet; Octavia's driver that does nothing gives none, or the same to all"
DIFFERENT: Mapping[str, tuple[str, ...]] = {
    _DELETED_IS_GONE: (
        *_test_names(_LB, "delete", "delete_authorized", "delete_pending_delete", "update_pending_delete"),
        *_test_names(_LISTENER, "delete", "delete_authorized", "delete_pending_delete", "update_pending_delete"),
        *_test_names(_POOL, "delete", "delete_authorize", "delete_with_session_persistence"),
        *(f"{of}.test_{name}" for of in (_MONITOR, _POLICY, _RULE) for name in ("delete", "delete_authorized")),
        *(
            f"{of}.test_{verb}_when_lb_pending_delete"
            for of in (_POOL, _MEMBER, _MONITOR, _POLICY, _RULE)
            for verb in ("create", "update", "delete")
        ),
    ),
    _NO_MONITOR: (
        *_test_names(_GRAPH, "statuses_members"),
        *_test_names(_MEMBER, "delete", "delete_authorized", "delete_not_authorized", "get_all", "get_all_authorized"),
    ),
    _UNSUPPORTED: (
        *_test_names(_LB, "create_with_non_exist_qos_policy_id", "create_with_qos", "update_with_bad_qos"),
        *_test_names(_LB, "update_with_qos", "update_with_sg_ids"),
        *_test_names(_GRAPH, "with_one_listener_sg_ids", "with_one_listener_sg_ids_and_allowed_cidrs", "with_sg_ids"),
    ),
    _SRIOV: (*_test_names(_GRAPH, "with_one_listener_one_member_sriov"), *_test_names(_MEMBER, "create_with_sriov")),
    _CRL: tuple(_test_names(_LISTENER, "create_with_crl_mismatch_ca_cert")),
    _ADDRESS: (
        *_test_names(_GRAPH, "with_additional_vips"),
        *_test_names(_LISTENER, "create_with_incompatible_allowed_cidrs_ipv6"),
    ),
    "a PUT of a collection has no method (405); Octavia reads the body first": (
        *_test_names(_LISTENER, "update_with_alpn_negative"),
        *_test_names(_POOL, "update_with_alpn_negative"),
    ),
    "TLS before 1.2 is refused": tuple(
        _test_names(_LISTENER, "update_with_tls_versions", "update_with_tls_versions_negative")
    ),
    "a secret that cannot be served is refused by its reference and with the reason": tuple(
        _test_names(_LISTENER, "create_with_bad_ca_cert", "create_with_bad_ca_cert_ref")
    ),
    "the role `service` lists members only for a service that Fairlead does not have": tuple(
        _test_names(_MEMBER, "get_all_authorized_service")
    ),
    "quotas of L7 policies hold in a request that creates a whole load balancer too": tuple(
        _test_names(_GRAPH, "create_over_quota_sanity_check")
    ),
    "without authentication a caller who names no project has the default one": tuple(
        _test_names(_LB, "create_no_project_id")
    ),
    "IPv6 addresses are shown in the form of RFC 5952": tuple(
        _test_names(_LB, "create_with_vip_network_and_address_ipv6")
    ),
    "a refused persistence_timeout names UDP and SCTP in a PUT too, as Octavia's own refusal of a POST does": tuple(
        _test_names(_POOL, "bad_update_non_udp_pool_with_udp_fields")
    ),
    "the keys of flavors and zones of amphorae": (
        *_test_names("test_provider.TestFlavorCapabilities", "amphora_driver", "amphora_driver_one_filter"),
        *_test_names("test_provider.TestFlavorCapabilities", "amphora_driver_one_filter_one_field"),
        *_test_names("test_provider.TestFlavorCapabilities", "amphora_driver_two_filters"),
        *_test_names("test_provider.TestAvailabilityZoneCapabilities", "amphora_driver", "amphora_driver_one_filter"),
        *_test_names("test_provider.TestAvailabilityZoneCapabilities", "amphora_driver_two_filters"),
    ),
}
"""Reason -> the tests that fail for it."""
LEFT_OUT: Mapping[str, tuple[str, ...]] = {
    "Octavia sorts sni_container_refs, which are random here; Fairlead keeps the order of the request": (
        tuple(_test_names(_GRAPH, "with_one_listener_sni_containers", "with_one_of_everything"))
    ),
    "expects quotas in the order of creation, which Octavia does not define; Fairlead sorts by project id": tuple(
        _test_names("test_quotas.TestQuotas", "deprecated_get_and_put_vars", "get_all_quotas_with_quotas")
    ),
    "is skipped in Octavia's own runs too": tuple(_test_names("test_quotas.TestQuotas", "get_all_limited")),
    "lets Octavia's network driver fail in the middle of a request": tuple(
        _test_names(
            _LB,
            "create_with_multiple_vips_subnet_fail",
            "create_with_vip_network_and_address_subnet_fail",
            "create_with_vip_network_subnet_fail",
        )
    ),
    "depends on how often and in which order Octavia reads secrets, or on a certificate of its own": tuple(
        _test_names(
            _LISTENER,
            "create_tls_with_no_subject_no_alt_names",
            "update_bad_tls_ref",
            "update_with_bad_crl",
            "update_with_unreachable_crl",
        )
    ),
}
"""Reason -> the tests that are not run for it."""
