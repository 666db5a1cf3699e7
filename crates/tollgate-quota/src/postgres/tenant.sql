SELECT t.tier, t.home, t.shards, o.limit_name, o.capacity, o.rate, o.word
FROM (SELECT * FROM tollgate_tenants WHERE tenant = $1) AS t
FULL JOIN (SELECT * FROM tollgate_overrides WHERE tenant = $1) AS o USING (tenant)
