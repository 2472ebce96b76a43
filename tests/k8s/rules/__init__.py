"""What must hold between rendered objects. A rule takes all of them and returns its complaints."""

from __future__ import annotations

from collections.abc import Callable

from tests.k8s.charts import Object
from tests.k8s.rules import names, network, operations, runtime, security, ways_in, weights, wiring

Rule = Callable[[list[Object]], list[str]]

RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        names.names_fit,
        names.texts_are_texts,
        wiring.selectors_find_pods,
        wiring.services_reach_ports,
        wiring.addresses_are_services,
        wiring.volumes_are_there,
        wiring.targets_exist,
        wiring.scaled_deployments_fix_no_replicas,
        wiring.service_accounts_exist,
        runtime.graces_add_up,
        runtime.accelerators_agree,
        runtime.arguments_parse,
        runtime.environment_is_known,
        runtime.settings_load,
        runtime.ports_are_those_bound,
        runtime.serve_config_is_ours,
        security.pods_are_restricted,
        security.images_are_pinned,
        security.tokens_are_mounted_only_where_used,
        operations.operators_write_back_nothing,
        operations.secrets_belong_to_no_revision,
        operations.node_drains_end,
        operations.spreads_count_only_nodes_that_pods_may_use,
        weights.weights_come_to_where_they_are_read,
        weights.pods_name_no_model,
        weights.claims_can_be_shared,
        weights.starts_have_time_for_weights,
        weights.jobs_end,
        ways_in.ways_lead_to_the_right_port,
        ways_in.tls_is_spoken_to_those_who_speak_it,
        ways_in.one_name_leads_to_one_api,
        ways_in.families_agree,
        network.edges_are_allowed,
        network.other_edges_are_denied,
    )
}
