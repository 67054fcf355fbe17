{% include "parts/locate.metal" %}

{% include "parts/fill_tail.metal" %}

{% include "parts/zero.metal" %}

{% include "parts/store.metal" %}
